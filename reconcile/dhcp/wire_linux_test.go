package dhcp

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIndexOf: the index of a link is found without a list of all links.
func TestIndexOf(t *testing.T) {
	links, err := net.Interfaces()
	if err != nil || len(links) == 0 {
		t.Fatalf("%d links, %v: each network namespace has lo", len(links), err)
	}
	for _, l := range links {
		if got, err := indexOf(l.Name); err != nil || got != l.Index {
			t.Errorf("%s: %d, %v, want %d", l.Name, got, err, l.Index)
		}
	}
	if _, err := indexOf("none-of-these"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that does not exist: %v", err)
	}
	if _, err := indexOf("a-name-of-more-than-15-bytes"); err == nil {
		t.Error("a name that no link can have has an index")
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = indexOf(links[0].Name) }); n > 4 {
		t.Errorf("%.0f allocations", n)
	}
}
