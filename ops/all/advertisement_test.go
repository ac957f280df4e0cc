package all_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
)

// TestRouters: any host of a network can advertise itself as a router, so each link that a topology makes or
// moves ignores advertisements and redirects, unless a step says otherwise. It is so for the cases of all step types.
func TestRouters(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{"testdata"}
	for _, dir := range typeFolders(t) {
		dirs = append(dirs, filepath.Join("..", dir, "testdata"))
	}
	links := 0
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			c, err := optest.Read(file)
			if err != nil {
				continue // a topology that cannot be decoded
			}
			w, changes, err := optest.Converge(t.Context(), reg, c)
			if err != nil {
				continue // what is refused
			}
			for _, link := range linksOf(changes) {
				l, there := w.Link(link)
				if !there || inBond(w, l) || l.MTU != nil && *l.MTU < 1280 || l.LinkKind == "vrf" {
					continue // the kernel has no IPv6 on it, or its members hear routers
				}
				links++
				for _, name := range []string{"accept_ra", "accept_redirects"} {
					s, there := netstate.Lookup(w.Snapshot, netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/" + name})
					if !there || s.Value == nil || *s.Value != "0" && !says(c, link, name) {
						t.Errorf("%s: %q hears routers: %s is %v", file, link, name, netstate.Value(s, "value"))
					}
				}
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links", links)
	}
}

// linksOf are the links of the sandbox that changes make or move there.
func linksOf(changes []netstate.Change) []string {
	var out []string
	for _, c := range changes {
		name := ""
		switch o := c.After.(type) {
		case netstate.Link:
			if c.Before == nil {
				name = o.Name
			}
		case netstate.Device:
			if o.At != nil {
				name = *o.At
			}
		}
		if name != "" && !netstate.OnHost(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func inBond(w *optest.World, l netstate.Link) bool {
	if l.Master == nil || *l.Master == "" {
		return false
	}
	master, _ := w.Link(*l.Master)
	return master.LinkKind == "bond"
}

// says reports whether the topology of a case has a step that decides about advertisements.
func says(c *optest.Case, link, name string) bool {
	for _, s := range c.Topology.Steps {
		ipam, _ := s.Config["ipam"].(map[string]any)
		values, _ := s.Config["sysctl"].(map[string]any)
		if ipam["type"] == "slaac" || s.Config["acceptRA"] == true {
			return true
		}
		for key := range values {
			if strings.HasSuffix(key, name) && (strings.Contains(key, link) || strings.Contains(key, "IFNAME")) {
				return true
			}
		}
	}
	return false
}

// withoutIPv6 has a snapshot know that the kernel has no IPv6, nor have some links.
func withoutIPv6(have *netstate.Snapshot, links ...string) *netstate.Snapshot {
	for _, link := range append(links, "default") {
		for _, name := range []string{"accept_ra", "accept_redirects"} {
			have.PutAbsent(netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/" + name}.Key())
		}
	}
	return have
}
