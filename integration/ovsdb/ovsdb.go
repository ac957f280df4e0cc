// Package ovsdb runs servers of databases of OVN and Open vSwitch, for tests. They skip
// themselves where the programs are not installed.
package ovsdb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Schemas, where Debian's packages have them.
const (
	Northbound = "/usr/share/ovn/ovn-nb.ovsschema"
	Southbound = "/usr/share/ovn/ovn-sb.ovsschema"
	VSwitch    = "/usr/share/openvswitch/vswitch.ovsschema"
)

// patience is how long a program may take, on a slow machine.
const patience = time.Minute

// Server is an ovsdb-server with one database.
type Server struct {
	testing.TB
	// File is that of the database, in a folder of the server, and Endpoint where it listens.
	File, Endpoint string

	options []string
	process *exec.Cmd
}

// New starts a server of an empty database, with options of ovsdb-server. It ends with the test.
func New(t testing.TB, schema string, options ...string) *Server {
	t.Helper()
	if os.Getenv("PLUMBLINE_BENCH") == "" {
		t.Skip("needs the programs of OVN: make test-ovn")
	}
	dir := t.TempDir()
	s := &Server{TB: t, File: filepath.Join(dir, "db"), Endpoint: "unix:" + filepath.Join(dir, "sock"), options: options}
	s.Must("ovsdb-tool", "create", s.File, schema)
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Start starts the server again, and returns when it answers.
func (s *Server) Start() {
	s.Helper()
	s.process = exec.Command("ovsdb-server", slices.Concat([]string{
		"--no-chdir", "--log-file=" + s.File + ".log", "--verbose=console:off", "--unixctl=" + s.File + ".ctl", "--remote=p" + s.Endpoint,
	}, s.options, []string{s.File})...)
	if err := s.process.Start(); err != nil {
		s.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := s.Try("ovsdb-client", "list-dbs", s.Endpoint)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatal(err)
		}
	}
}

// Kill ends the server, whose database remains.
func (s *Server) Kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = os.Remove(strings.TrimPrefix(s.Endpoint, "unix:"))
}

// Signal sends a signal to the server.
func (s *Server) Signal(signal os.Signal) {
	s.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		s.Fatal(err)
	}
}

// Try runs a program.
func (s *Server) Try(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// Must runs a program that must succeed.
func (s *Server) Must(command ...string) string {
	s.Helper()
	out, err := s.Try(command...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// Nbctl runs ovn-nbctl on the database.
func (s *Server) Nbctl(arguments ...string) string {
	s.Helper()
	return s.Must(append([]string{"ovn-nbctl", "--db=" + s.Endpoint}, arguments...)...)
}
