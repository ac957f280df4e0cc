package imports_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRanges holds which addresses the AddressPool gives that is made of ranges of whereabouts. What whereabouts itself assigns of each is
// compared with the same file by integration/whereabouts.
func TestRanges(t *testing.T) {
	const file = "testdata/ranges.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		given := "= " + addressesGiven(t, lines[i])
		if *update {
			lines[i+1] = given
		} else if given != lines[i+1] {
			t.Errorf("%s:\n%s\nwant\n%s", lines[i], given, lines[i+1])
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// addressesGiven are all addresses of the pool that is made of an ipam.
func addressesGiven(t *testing.T, ipam string) string {
	t.Helper()
	objects := objectsIn(t, fmt.Appendf(nil, "{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: net}, spec: {config: '{\"type\": \"macvlan\", \"master\": \"eth1\", \"ipam\": {\"type\": \"whereabouts\", %s}'}}", ipam[1:]))
	result := convert(t, contracts(t), objects)
	if len(result.Problems) > 0 {
		t.Fatal(ipam, result.Problems)
	}
	output, _ := show(t, result)
	f, err := topology.Parse("", []byte(output))
	if err != nil {
		t.Fatal(err)
	}
	pools, err := objectfile.Decode[v1alpha1.AddressPool](f, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	if err != nil || len(pools) != 1 {
		t.Fatalf("%s: %d pools, %v", ipam, len(pools), err)
	}
	var out []string
	for _, pool := range pools {
		layout, err := addresspool.Of(pool)
		if err != nil {
			t.Fatal(err)
		}
		for _, is4 := range layout.Families() {
			for _, p := range layout.Prefixes(is4) {
				for a := p.Addr(); p.Contains(a); a = a.Next() {
					if _, gives := layout.Gives(netip.PrefixFrom(a, a.BitLen())); gives {
						out = append(out, a.String())
					}
				}
			}
		}
	}
	return strings.Join(out, " ")
}
