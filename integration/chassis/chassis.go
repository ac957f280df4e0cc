package chassis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
)

// The programs that Restart restarts.
const (
	Database   = "ovsdb-server" // all three databases
	Northd     = "ovn-northd"
	Controller = "ovn-controller"
	VSwitch    = "ovs-vswitchd"
)

// patience is how long a program may take to answer, on a slow machine.
const patience = time.Minute

// Chassis is programs of OVN, which have their files in one folder: all of them, those that nodes
// share, or those of one node.
type Chassis struct {
	dir        string
	netns      string   // name of the namespace that the programs run in; "" is that of the caller
	files      []string // databases of the server
	remotes    []string // where the server listens, besides its socket
	programs   []string // in the order of their start
	northbound string   // endpoints, with commas
	southbound string
	running    map[string]*exec.Cmd
}

// Schemas, where Debian's packages have them.
var schemas = map[string]string{
	northboundFile: "/usr/share/ovn/ovn-nb.ovsschema", southboundFile: "/usr/share/ovn/ovn-sb.ovsschema",
	switchFile: "/usr/share/openvswitch/vswitch.ovsschema",
}

// Files of databases.
const (
	northboundFile = "nb.db"
	southboundFile = "sb.db"
	switchFile     = "conf.db"
)

// Start starts everything, with files in a folder that is empty. The datapath is the one of the
// namespace that the caller is in, so there is one such Chassis at a time. Northbound are the
// endpoints of a database that runs already; without any it has its own.
func Start(ctx context.Context, dir string, northbound ...string) (*Chassis, error) {
	c := &Chassis{
		dir: dir, files: []string{northboundFile, southboundFile, switchFile},
		programs: []string{Database, VSwitch, Northd, Controller},
	}
	c.northbound, c.southbound = c.Endpoint(), c.Endpoint()
	if len(northbound) > 0 {
		c.files, c.northbound = c.files[1:], strings.Join(northbound, ",")
	}
	return c, c.first(ctx, "chassis", "127.0.0.1")
}

// startCentral starts what nodes share. The databases listen at an address, too.
func startCentral(ctx context.Context, dir, remote string) (*Chassis, error) {
	c := &Chassis{
		dir: dir, files: []string{northboundFile, southboundFile}, remotes: []string{remote},
		programs: []string{Database, Northd},
	}
	c.northbound, c.southbound = c.Endpoint(), c.Endpoint()
	return c, c.first(ctx, "", "")
}

// startNode starts what a node has of its own in a namespace, whose address is that of its tunnels.
func startNode(ctx context.Context, dir, name, netns, address, northbound, southbound string) (*Chassis, error) {
	c := &Chassis{
		dir: dir, netns: netns, files: []string{switchFile}, programs: []string{Database, VSwitch, Controller},
		northbound: northbound, southbound: southbound,
	}
	return c, c.first(ctx, name, address)
}

// first starts the programs for the first time. A machine with Open vSwitch is a chassis with this name.
func (c *Chassis) first(ctx context.Context, name, address string) (err error) {
	c.running = map[string]*exec.Cmd{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start OVN: %w", errors.Join(err, c.Close()))
		}
	}()
	for _, file := range c.files {
		path := filepath.Join(c.dir, file)
		if _, err := os.Stat(path); err == nil {
			continue // a member of a cluster
		}
		if _, err := c.Run(ctx, "ovsdb-tool", "create", path, schemas[file]); err != nil {
			return err
		}
	}
	for _, program := range c.programs {
		if err := c.start(ctx, program); err != nil {
			return err
		}
		if program != Database || name == "" {
			continue
		}
		if _, err := c.Run(ctx, "ovs-vsctl", "--no-wait", "init", "--", "set", "Open_vSwitch", ".",
			"external_ids:system-id="+name, "external_ids:ovn-remote="+c.southbound, "external_ids:ovn-encap-type=geneve",
			"external_ids:ovn-encap-ip="+address); err != nil {
			return err
		}
	}
	return nil
}

// Endpoint is that of the databases that run here, as OVN writes it.
func (c *Chassis) Endpoint() string { return "unix:" + filepath.Join(c.dir, "db.sock") }

// SetRules makes the rules of a logical switch these, as an administrator would: its rows are nobody's. It returns when they decide.
func (c *Chassis) SetRules(ctx context.Context, on string, rules []netstate.LogicalRule) error {
	arguments := []string{"qos-del", on}
	for _, r := range rules {
		arguments = append(arguments, "--", "qos-add", on, *r.Direction, fmt.Sprint(*r.Priority), *r.Match, fmt.Sprintf("dscp=%d", *r.DSCP))
		if *r.Rate > 0 {
			arguments = append(arguments, fmt.Sprintf("rate=%d", *r.Rate))
		}
		if *r.Burst > 0 {
			arguments = append(arguments, fmt.Sprintf("burst=%d", *r.Burst))
		}
	}
	if _, err := c.Run(ctx, "ovn-nbctl", arguments...); err != nil {
		return err
	}
	return c.Sync(ctx)
}

// arguments of each program that runs.
func (c *Chassis) arguments(name string) []string {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	out := []string{"--no-chdir", "--unixctl=" + file(name+".ctl"), "--log-file=" + file(name+".log"), "--verbose=console:off"}
	switch name {
	case Database:
		for _, remote := range append([]string{"p" + c.Endpoint()}, c.remotes...) {
			out = append(out, "--remote="+remote)
		}
		for _, name := range c.files {
			out = append(out, file(name))
		}
		return out
	case Northd:
		return append(out, "--ovnnb-db="+c.northbound, "--ovnsb-db="+c.southbound)
	default:
		return append(out, c.Endpoint())
	}
}

// start starts a program, and waits until it answers.
func (c *Chassis) start(ctx context.Context, name string) error {
	// Its life is not that of the context: Close ends it.
	command := append([]string{name}, c.arguments(name)...)
	if c.netns != "" {
		command = append([]string{"ip", "netns", "exec", c.netns}, command...) // which becomes the program
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = c.environment()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.running[name] = cmd
	return Eventually(ctx, name+" answers", func() error {
		_, err := c.Run(ctx, "ovs-appctl", "--target="+filepath.Join(c.dir, name+".ctl"), "version")
		return err
	})
}

// Kill ends a program as a crash does.
func (c *Chassis) Kill(name string) error {
	cmd := c.running[name]
	if cmd == nil {
		return fmt.Errorf("%s does not run", name)
	}
	delete(c.running, name)
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	_ = cmd.Wait() // says that it was killed
	return nil
}

// Start starts a program that was killed.
func (c *Chassis) Start(ctx context.Context, name string) error { return c.start(ctx, name) }

// Restart ends a program as a crash does, and starts it.
func (c *Chassis) Restart(ctx context.Context, name string) error {
	if err := c.Kill(name); err != nil {
		return err
	}
	return c.start(ctx, name)
}

// Crash ends all programs as the end of a node does.
func (c *Chassis) Crash() error {
	var errs []error
	for name := range maps.Clone(c.running) {
		errs = append(errs, c.Kill(name))
	}
	return errors.Join(errs...)
}

// Close ends the programs, and removes the bridge and the datapath.
func (c *Chassis) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, name := range []string{Controller, Northd} {
		if c.running[name] != nil {
			errs = append(errs, c.Kill(name))
		}
	}
	if vswitch := c.running[VSwitch]; vswitch != nil {
		delete(c.running, VSwitch)
		if _, err := c.Run(ctx, "ovs-appctl", "--target="+filepath.Join(c.dir, VSwitch+".ctl"), "exit", "--cleanup"); err != nil {
			errs = append(errs, err, vswitch.Process.Kill())
		}
		_ = vswitch.Wait() // says how it ended
	}
	if c.running[Database] != nil {
		errs = append(errs, c.Kill(Database))
	}
	return errors.Join(errs...)
}

func (c *Chassis) environment() []string {
	return append(os.Environ(), "OVS_RUNDIR="+c.dir, "OVN_RUNDIR="+c.dir, "OVS_DBDIR="+c.dir, "OVN_DBDIR="+c.dir, "OVS_LOGDIR="+c.dir,
		"OVN_LOGDIR="+c.dir,
		"OVN_NB_DB="+c.northbound, "OVN_SB_DB="+c.southbound)
}

// Run runs a program of OVN, Open vSwitch or iproute2, and returns what it prints.
func (c *Chassis) Run(ctx context.Context, program string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env = c.environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(arguments, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// Appctl asks a program that runs.
func (c *Chassis) Appctl(ctx context.Context, name string, arguments ...string) (string, error) {
	return c.Run(ctx, "ovs-appctl", slices.Concat([]string{"--target=" + filepath.Join(c.dir, name+".ctl")}, arguments)...)
}

// Plug gives a logical switch port an interface of this namespace, and waits until the port is up.
func (c *Chassis) Plug(ctx context.Context, port, iface string) error {
	if _, err := c.Run(ctx, "ovs-vsctl", "--", "--may-exist", "add-port", "br-int", iface, "--", "set", "Interface", iface,
		"external_ids:iface-id="+port); err != nil {
		return err
	}
	_, err := c.Run(ctx, "ovn-nbctl", "--timeout=60", "wait-until", "Logical_Switch_Port", port, "up=true")
	return err
}

// Sync waits until what is in the Northbound database decides about packets: northd has compiled
// it, the controller has written the flows, and no flow of the datapath is from before.
func (c *Chassis) Sync(ctx context.Context) error {
	if _, err := c.Run(ctx, "ovn-nbctl", "--wait=hv", "--timeout=60", "sync"); err != nil {
		return err
	}
	_, err := c.Appctl(ctx, VSwitch, "revalidator/wait")
	return err
}

// Eventually retries until there is no error.
func Eventually(ctx context.Context, what string, check func() error) error {
	for end := time.Now().Add(patience); ; {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
