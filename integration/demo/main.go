// Command demo shows plumbline on the SR-IOV functions of a machine: it types the commands that a user would, from
// the plan to a ping and back. make demo runs it, with the program and the topology as arguments.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

const usage = `demo PROGRAM TOPOLOGY PEER

Creates two network namespaces, applies a topology to each, changes one of them from outside, shows the drift and the
repair, deletes both and checks that every virtual function is back on the host as it was.

Needs the cards enp3s0f0, enp3s0f1, enp4s0f0 and enp4s0f1 with virtual functions and RDMA, which the virtual machine of
make demo has. Exits with 1 if a check fails.`

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1], os.Args[2], os.Args[3])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, topology, peer string) error {
	dir, err := os.MkdirTemp("", "plumbline-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{ctx: ctx, program: program, topology: topology, peer: peer, dir: dir}
	defer d.cleanup()
	return d.run()
}

// demo runs the commands that a user would type.
type demo struct {
	ctx                     context.Context
	program, topology, peer string
	dir                     string // state, and configuration of the daemon
	host                    *kernel.Host
}

// differs is the exit status of a command that finds a difference.
const differs = 2

const (
	demoPod  = "plumbline-demo-pod"
	demoPeer = "plumbline-demo-peer"
)

func (d *demo) run() error {
	var err error
	if d.host, err = kernel.Open(kernel.Options{}); err != nil {
		return err
	}
	defer d.host.Close()
	before, err := d.functions()
	if err != nil {
		return err
	}
	for _, name := range []string{demoPod, demoPeer} {
		if _, err := namespace.Add(name); err != nil {
			return err
		}
	}
	for _, part := range []func() error{d.show, d.apply, d.ping, d.disturb, d.release} {
		if err := part(); err != nil {
			return err
		}
	}
	after, err := d.functions()
	if err != nil {
		return err
	}
	if gone := differences(before, after); len(gone) > 0 {
		return fmt.Errorf("not every virtual function is back as it was:\n  %s", strings.Join(gone, "\n  "))
	}
	d.say("%d virtual functions are back on the host with their own name, MAC and MTU.", len(after))
	return nil
}

func (d *demo) show() error {
	d.title("The devices of this machine")
	if err := d.must(0, "devices"); err != nil {
		return err
	}
	d.title("The topology, and what it would change")
	if err := d.must(0, "validate", "-f", d.topology); err != nil {
		return err
	}
	return d.must(differs, "plan", "-f", d.topology, "--netns", demoPod)
}

func (d *demo) apply() error {
	d.title("Applied")
	if err := d.must(0, "apply", "-f", d.topology, "--netns", demoPod); err != nil {
		return err
	}
	d.title("A second apply changes nothing; the results of the steps, as CNI results")
	if err := d.must(0, "apply", "-f", d.topology, "--netns", demoPod, "-o", "json"); err != nil {
		return err
	}
	if err := d.must(0, "plan", "-f", d.topology, "--netns", demoPod); err != nil {
		return err
	}
	d.title("A peer at the other end of the wires")
	return d.must(0, "apply", "-f", d.peer, "--netns", demoPeer)
}

func (d *demo) ping() error {
	d.title("Ping over the tagged bond")
	for _, dst := range []string{"10.100.0.1", "10.200.0.1"} {
		took, tries, err := ping(d.ctx, kernelPath(demoPod), dst)
		if err != nil {
			return fmt.Errorf("ping %s from %s: %w", dst, demoPod, err)
		}
		d.say("%s answered in %s (try %d)", dst, took.Round(10*time.Microsecond), tries)
	}
	return nil
}

// disturb deletes a VLAN, changes an MTU and removes a route, as another program would, and
// shows the drift and its repair.
func (d *demo) disturb() error {
	d.title("From outside: the routes are deleted, mgmt0 gets another MTU, data0 is deleted")
	box, err := d.host.Sandbox(kernelPath(demoPod))
	if err != nil {
		return err
	}
	defer box.Close()
	for _, c := range []netstate.Change{
		{Before: netstate.Route{Link: "data0", Dst: "10.100.0.0/16", Gateway: "10.100.0.1", Table: netstate.TableMain}},
		{Before: netstate.Link{Name: "mgmt0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "mgmt0", MTU: new(uint32(1400))}},
		{Before: netstate.Route{Link: "mgmt0", Dst: "0.0.0.0/0", Gateway: "10.200.0.1", Table: netstate.TableMain}},
		{Before: netstate.Link{Name: "data0", LinkKind: "vlan"}},
	} {
		if err := box.Apply(d.ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	out, err := d.output(differs, "status", "--netns", demoPod)
	if err != nil {
		return err
	}
	for _, want := range []string{"data0", "mtu", "0.0.0.0/0"} {
		if !strings.Contains(out, want) {
			return fmt.Errorf("status does not report %q", want)
		}
	}
	d.title("Repaired")
	if err := d.must(0, "apply", "-f", d.topology, "--netns", demoPod); err != nil {
		return err
	}
	if err := d.must(0, "status", "--netns", demoPod); err != nil {
		return err
	}
	if err := d.ping(); err != nil {
		return err
	}
	return d.watched(box)
}

// watched shows that the daemon repairs drift.
func (d *demo) watched(box *kernel.Sandbox) error {
	d.title("With the daemon watching: data0 is deleted once more")
	config := d.file("run")
	if err := os.Mkdir(config, 0o700); err != nil {
		return err
	}
	daemon := d.command("run", "--config", config, "--listen", "127.0.0.1:0")
	daemon.Stdout, daemon.Stderr = os.Stdout, os.Stdout
	if err := daemon.Start(); err != nil {
		return err
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}()
	if err := d.eventually("the daemon watches the sandbox", func() (bool, error) {
		return d.expectExit(0, "status", "--netns", demoPod) == nil, nil
	}); err != nil {
		return err
	}
	// The daemon has started when it has repaired something.
	for i := range 2 {
		start := time.Now()
		if err := box.Apply(d.ctx, netstate.Change{Before: netstate.Link{Name: "data0", LinkKind: "vlan"}}); err != nil {
			return err
		}
		err := d.eventually("the daemon repairs data0", func() (bool, error) {
			snap, err := box.Observe(d.ctx, nil)
			if err != nil {
				return false, err
			}
			l, ok := snap.Link("data0")
			_, routed := netstate.Lookup(snap, netstate.Route{
				Link: "data0", Dst: "10.100.0.0/16", Gateway: "10.100.0.1",
				Table: netstate.TableMain,
			})
			return ok && l.MTU != nil && *l.MTU == 9000 && routed, nil
		})
		if err != nil {
			return err
		}
		if i > 0 { // the first includes the daemon's start
			d.say("data0 is back, with its address, MTU and route, %s after it was deleted", time.Since(start).Round(time.Millisecond))
		}
	}
	return nil
}

func (d *demo) release() error {
	d.title("Deleted")
	for _, name := range []string{demoPod, demoPeer} {
		if err := d.must(0, "delete", "--netns", name); err != nil {
			return err
		}
	}
	return d.must(0, "devices")
}

// cleanup removes everything, however the demo ended.
func (d *demo) cleanup() {
	d.ctx = context.WithoutCancel(d.ctx)
	for _, name := range []string{demoPod, demoPeer} {
		err := errors.Join(d.expectExit(0, "delete", "--netns", name), namespace.Delete(kernelPath(name)))
		if err != nil {
			fmt.Fprintf(os.Stderr, "demo: clean up %s: %v\n", name, err)
		}
	}
}

func kernelPath(name string) string { return filepath.Join("/run/netns", name) }

func (d *demo) file(name string) string { return filepath.Join(d.dir, name) }

func (d *demo) title(text string) { fmt.Printf("\n=== %s\n", text) }

func (d *demo) say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// must runs a command of plumbline as a user would and fails on another exit status.
func (d *demo) must(want int, args ...string) error {
	_, err := d.output(want, args...)
	return err
}

func (d *demo) output(want int, args ...string) (string, error) {
	shown := slices.Clone(args)
	for i := range shown {
		shown[i] = strings.TrimPrefix(shown[i], d.dir+"/")
	}
	fmt.Printf("\n$ plumbline %s\n", strings.Join(shown, " "))
	var copied bytes.Buffer
	cmd := d.command(args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &copied), os.Stderr
	err := exits(cmd, want)
	return copied.String(), err
}

// quiet is must without output.
func (d *demo) expectExit(want int, args ...string) error { return exits(d.command(args...), want) }

// command is plumbline with the demo's state. It is interrupted with the demo, and may roll back then.
func (d *demo) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(d.ctx, d.program, append([]string{"--state-dir", d.file("state")}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// exits runs a command that has to exit with a status.
func exits(cmd *exec.Cmd, want int) error {
	if err := cmd.Run(); cmd.ProcessState == nil {
		return err
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		return fmt.Errorf("%s: exit status %d, want %d", strings.Join(cmd.Args, " "), got, want)
	}
	return nil
}

func (d *demo) eventually(what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// functions lists the virtual functions on the host.
func (d *demo) functions() ([]string, error) {
	devices, err := hostengine.Devices(d.ctx, d.host, nil)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, v := range devices {
		if v.Kind == inventory.KindVF {
			out = append(out, fmt.Sprintf("%s %s mac %s mtu %d up %v", v.ID, v.IfName, v.MAC, v.MTU, v.Up))
		}
	}
	if len(out) == 0 {
		return nil,
			errors.New("the demo needs SR-IOV virtual functions, and this machine has none: run it in the virtual machine, with make demo")
	}
	slices.Sort(out)
	return out, nil
}

func differences(before, after []string) []string {
	var out []string
	for _, b := range before {
		if !slices.Contains(after, b) {
			out = append(out, "was "+b)
		}
	}
	for _, a := range after {
		if !slices.Contains(before, a) {
			out = append(out, "is  "+a)
		}
	}
	return out
}

// ping sends echo requests out of a namespace until one is answered; a bond
// that has just come up takes a moment to agree with its partner.
func ping(ctx context.Context, netns, dst string) (took time.Duration, tries int, err error) {
	var conn *icmp.PacketConn
	if err := kernel.Within(netns, func() (err error) {
		conn, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	}); err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	buf := make([]byte, 1500)
	for tries = 1; tries <= 100; tries++ {
		if ctx.Err() != nil {
			return 0, tries, ctx.Err()
		}
		msg := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: tries, Data: []byte("plumbline")}}
		raw, err := msg.Marshal(nil)
		if err != nil {
			return 0, tries, err
		}
		start := time.Now()
		if _, err := conn.WriteTo(raw, &net.IPAddr{IP: net.ParseIP(dst)}); err != nil {
			return 0, tries, err
		}
		if err := conn.SetReadDeadline(start.Add(200 * time.Millisecond)); err != nil {
			return 0, tries, err
		}
		if answered(conn, buf, tries) {
			return time.Since(start), tries, nil
		}
	}
	return 0, tries, errors.New("no answer")
}

// answered reads until the echo reply to seq comes, or the deadline.
func answered(conn *icmp.PacketConn, buf []byte, seq int) bool {
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.Seq == seq && e.ID == os.Getpid()&0xffff {
			return true
		}
	}
}
