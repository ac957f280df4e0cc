package chassis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
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

// Chassis is OVN with all of its programs, which have their files in one folder.
type Chassis struct {
	dir     string
	running map[string]*exec.Cmd
}

// Start starts everything, with files in a folder that is empty. The datapath is the one of the
// namespace that the caller is in, so there is one Chassis at a time.
func Start(ctx context.Context, dir string) (c *Chassis, err error) {
	c = &Chassis{dir: dir, running: map[string]*exec.Cmd{}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start OVN: %w", errors.Join(err, c.Close()))
		}
	}()
	// Where Debian's packages have them.
	for name, schema := range map[string]string{
		"nb.db": "/usr/share/ovn/ovn-nb.ovsschema", "sb.db": "/usr/share/ovn/ovn-sb.ovsschema", "conf.db": "/usr/share/openvswitch/vswitch.ovsschema",
	} {
		if _, err := c.Run(ctx, "ovsdb-tool", "create", filepath.Join(dir, name), schema); err != nil {
			return nil, err
		}
	}
	if err := c.start(ctx, Database); err != nil {
		return nil, err
	}
	if _, err := c.Run(ctx, "ovs-vsctl", "--no-wait", "init", "--", "set", "Open_vSwitch", ".",
		"external_ids:system-id=chassis", "external_ids:ovn-remote="+c.Endpoint(), "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=127.0.0.1"); err != nil {
		return nil, err
	}
	for _, name := range []string{VSwitch, Northd, Controller} {
		if err := c.start(ctx, name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Endpoint is that of the Northbound database, as OVN writes it.
func (c *Chassis) Endpoint() string { return "unix:" + filepath.Join(c.dir, "db.sock") }

// arguments of each program that runs.
func (c *Chassis) arguments(name string) []string {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	out := []string{"--no-chdir", "--unixctl=" + file(name+".ctl"), "--log-file=" + file(name+".log"), "--verbose=console:off"}
	switch name {
	case Database:
		return append(out, "--remote=p"+c.Endpoint(), file("nb.db"), file("sb.db"), file("conf.db"))
	case Northd:
		return append(out, "--ovnnb-db="+c.Endpoint(), "--ovnsb-db="+c.Endpoint())
	default:
		return append(out, c.Endpoint())
	}
}

// start starts a program, and waits until it answers.
func (c *Chassis) start(ctx context.Context, name string) error {
	// Its life is not that of the context: Close ends it.
	cmd := exec.Command(name, c.arguments(name)...)
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
		if _, err := c.Run(ctx, "ovs-appctl", "--target="+filepath.Join(c.dir, VSwitch+".ctl"), "exit", "--cleanup"); err != nil {
			errs = append(errs, err, c.Kill(VSwitch))
		} else {
			_ = vswitch.Wait() // says how it ended
		}
	}
	if c.running[Database] != nil {
		errs = append(errs, c.Kill(Database))
	}
	return errors.Join(errs...)
}

func (c *Chassis) environment() []string {
	return append(os.Environ(), "OVS_RUNDIR="+c.dir, "OVN_RUNDIR="+c.dir, "OVS_DBDIR="+c.dir, "OVN_DBDIR="+c.dir, "OVS_LOGDIR="+c.dir, "OVN_LOGDIR="+c.dir,
		"OVN_NB_DB="+c.Endpoint(), "OVN_SB_DB="+c.Endpoint())
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
	if _, err := c.Run(ctx, "ovs-vsctl", "--", "--may-exist", "add-port", "br-int", iface, "--", "set", "Interface", iface, "external_ids:iface-id="+port); err != nil {
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
