package chassis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/plumbline/plumbline/integration/traffic"
)

// Raft is a Northbound database of several servers. Each has a network namespace, with an interface to its
// clients and another one to the other servers.
type Raft struct{ Member []*Member }

// Member is one of the servers.
type Member struct {
	*Chassis
	wire string // the end in this namespace of its interface to the other servers
	host *traffic.Pod
}

const (
	raftClients = "raftclients" // bridges
	raftServers = "raftservers"
	raftName    = "OVN_Northbound"
)

// raftAddress is that of a member's interface to its clients, and to the other servers.
func raftAddress(bridge string, i int) string {
	return fmt.Sprintf("%s.%d", map[string]string{raftClients: "10.2.0", raftServers: "10.3.0"}[bridge], 10+i)
}

// StartRaft starts so many servers, with files in a folder that is empty.
func StartRaft(ctx context.Context, dir string, servers int) (out *Raft, err error) {
	out = &Raft{}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if err := traffic.IP(ctx,
		fmt.Sprintf("link add %s type bridge\nlink set %s up\naddr add 10.2.0.1/24 dev %s\nlink add %s type bridge\nlink set %s up",
			raftClients, raftClients, raftClients, raftServers, raftServers)); err != nil {
		return out, err
	}
	for i := range servers {
		name := fmt.Sprintf("raft-%d", i)
		m := &Member{wire: fmt.Sprintf("r%deth1", i)}
		if m.host, err = traffic.Bare(name); err != nil {
			return out, err
		}
		out.Member = append(out.Member, m)
		commands := []string{"link set lo up"}
		for iface, bridge := range map[string]string{"eth0": raftClients, "eth1": raftServers} {
			if err := traffic.IP(ctx, fmt.Sprintf("link add r%d%s type veth peer name %s netns %s\nlink set r%d%s master %s up", i, iface,
				iface, name, i, iface, bridge)); err != nil {
				return out, err
			}
			commands = append(commands, "link set "+iface+" up", "addr add "+raftAddress(bridge, i)+"/24 dev "+iface)
		}
		if err := m.host.IP(ctx, strings.Join(commands, "\n")); err != nil {
			return out, err
		}
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return out, err
		}
		m.Chassis = &Chassis{
			dir: path, netns: name, files: []string{northboundFile},
			remotes: []string{"ptcp:" + centralPort + ":" + raftAddress(raftClients, i)}, programs: []string{Database},
		}
		if err := out.create(ctx, i, i > 0); err != nil {
			return out, err
		}
		if err := m.first(ctx, "", ""); err != nil {
			return out, err
		}
		if err := Eventually(ctx, name+" is a member", func() error { return m.says(ctx, "Status: cluster member") }); err != nil {
			return out, err
		}
	}
	return out, nil
}

// create writes the file of a server that does not run: of a new cluster, or of one that joins it and knows nothing yet.
func (r *Raft) create(ctx context.Context, i int, join bool) error {
	m := r.Member[i]
	at := func(i int) string { return "tcp:" + raftAddress(raftServers, i) + ":6643" }
	command := []string{"create-cluster", m.file(), schemas[northboundFile], at(i)}
	if join {
		command = []string{"join-cluster", m.file(), raftName, at(i)}
		for other := range r.Member {
			if other != i {
				command = append(command, at(other))
			}
		}
	}
	_, err := m.Run(ctx, "ovsdb-tool", command...)
	return err
}

func (m *Member) file() string { return filepath.Join(m.dir, northboundFile) }

// Forget gives a server that does not run the file of one that joins the cluster and knows nothing yet.
func (r *Raft) Forget(ctx context.Context, i int) error {
	m := r.Member[i]
	if err := os.Rename(m.file(), m.file()+".kept"); err != nil {
		return err
	}
	return r.create(ctx, i, true)
}

// Remember gives it back what it had.
func (m *Member) Remember() error { return os.Rename(m.file()+".kept", m.file()) }

// says holds that the server says something about the cluster.
func (m *Member) says(ctx context.Context, want string) error {
	status, err := m.Appctl(ctx, Database, "cluster/status", raftName)
	if err == nil && !strings.Contains(status, want+"\n") {
		err = fmt.Errorf("not %q: %s", want, status)
	}
	return err
}

// Leader waits until one of these servers says that it is the leader.
func (r *Raft) Leader(ctx context.Context, of ...int) (leader int, err error) {
	err = Eventually(ctx, "a leader", func() error {
		var errs []error
		for _, i := range of {
			if err := r.Member[i].says(ctx, "Role: leader"); err != nil {
				errs = append(errs, err)
				continue
			}
			leader = i
			return nil
		}
		return errors.Join(errs...)
	})
	return leader, err
}

// Isolate cuts a server from the others, or connects it. Its clients reach it either way.
func (r *Raft) Isolate(ctx context.Context, i int, isolate bool) error {
	state := "up"
	if isolate {
		state = "down"
	}
	return traffic.IP(ctx, "link set "+r.Member[i].wire+" "+state)
}

// Endpoints are those of the servers for clients.
func (r *Raft) Endpoints() (out []string) {
	for i := range r.Member {
		out = append(out, "tcp:"+raftAddress(raftClients, i)+":"+centralPort)
	}
	return out
}

// Close ends the servers, and removes namespaces and bridges.
func (r *Raft) Close() error {
	var errs []error
	for _, m := range r.Member {
		if m.Chassis != nil {
			errs = append(errs, m.Close())
		}
		errs = append(errs, m.host.Close())
	}
	return errors.Join(append(errs, traffic.IP(context.Background(), "link del "+raftClients+"\nlink del "+raftServers))...)
}
