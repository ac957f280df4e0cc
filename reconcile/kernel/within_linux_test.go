package kernel_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

func TestNamedNamespace(t *testing.T) {
	b := newBench(t)
	path, err := namespace.Add("plumbline-test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := namespace.Add("plumbline-test"); err == nil {
		t.Error("made twice")
	}
	s, err := b.host.Sandbox(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), netstate.Change{After: dummy("only-here")}); err != nil {
		t.Error(err)
	}
	s.Close()
	err = kernel.Within(path, func() error {
		_, err := net.InterfaceByName("only-here")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName("only-here"); err == nil {
		t.Error("a thread was left in the namespace")
	}
	for range 2 {
		if err := namespace.Delete(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there", path)
	}
	if err := kernel.Within(path, func() error { return nil }); fault.Of(err) != fault.Gone {
		t.Errorf("got %v", err)
	}
	if filepath.Dir(path) != "/run/netns" {
		t.Errorf("made at %s", path)
	}
}
