package qos_test

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func objectReference(n qos.Network) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: string(n.Kind), Namespace: n.Namespace, Name: n.Name}
}

// TestCases compares what objects mean for pods with golden files: errors, warnings, and
// the rules of each attachment. A line of pods.txt is one attachment of a pod:
//
//	NAMESPACE/NAME LABELS NETWORK ADDRESS...
//
// LABELS are a=b,c=d, or -. NETWORK is KIND, KIND/NAME or KIND/NAMESPACE/NAME, with its
// labels after a question mark; DefaultNetwork is primary.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			archive.Files = archive.Files[:2]
			objects, err := qostest.Objects(archive.Files[0].Data)
			if err != nil {
				t.Fatal(err)
			}
			c, out := qos.NewCompiler(), &strings.Builder{}
			for _, o := range objects {
				p := qos.New(o)
				if p.Err != nil {
					fmt.Fprintln(out, p.Err)
				}
				for _, w := range p.Warnings {
					fmt.Fprintln(out, "warning:", w)
				}
				c.SetPolicy(p)
			}
			for _, pod := range pods(t, string(archive.Files[1].Data)) {
				c.SetPod(pod)
				for i, rules := range c.Rules(pod.Key) {
					fmt.Fprintf(out, "%s on %s:\n", pod.Key, pod.Attachments[i].Interface)
					for _, r := range rules {
						fmt.Fprintln(out, "  ", r.String())
					}
				}
			}
			archive.Files = append(archive.Files, txtar.File{Name: "rules.txt", Data: []byte(out.String())})
			got := txtar.Format(archive)
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got, rewritten with -update:\n%s", diff)
			}
		})
	}
}

func pods(t *testing.T, text string) []*qos.Pod {
	t.Helper()
	var out []*qos.Pod
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			t.Fatalf("pod %q", line)
		}
		namespace, name, _ := strings.Cut(f[0], "/")
		key := types.NamespacedName{Namespace: namespace, Name: name}
		i := slices.IndexFunc(out, func(p *qos.Pod) bool { return p.Key == key })
		if i < 0 {
			i = len(out)
			out = append(out, &qos.Pod{Key: key})
			if f[1] != "-" {
				out[i].Labels = parseLabels(t, f[1])
			}
		}
		network, of, _ := strings.Cut(f[2], "?")
		a := qos.Attachment{Interface: network, Network: qos.Network{Labels: parseLabels(t, of), Primary: network == string(qos.DefaultNetwork)}}
		parts := strings.Split(network, "/")
		a.Network.Kind = qos.NetworkKind(parts[0])
		if len(parts) > 1 {
			a.Network.Name = parts[len(parts)-1]
		}
		if len(parts) > 2 {
			a.Network.Namespace = parts[1]
		}
		for _, text := range f[3:] {
			a.Addresses = append(a.Addresses, netip.MustParseAddr(text))
		}
		out[i].Attachments = append(out[i].Attachments, a)
	}
	return out
}

func parseLabels(t *testing.T, text string) map[string]string {
	t.Helper()
	out, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSubtraction is the prefixes that are left of a block without its exceptions.
func TestSubtraction(t *testing.T) {
	for _, c := range []struct {
		cidr   string
		except []string
		want   int
	}{
		{"0.0.0.0/0", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}, 31},
		{"128.116.0.0/17", []string{"128.116.0.0/32", "128.116.0.255/32"}, 21},
		{"128.115.0.0/17", []string{"128.115.0.0/32", "123.123.123.123/32"}, 15},
		{"::/0", []string{"fc00::/7", "fe80::/10"}, 9},
		{"10.0.0.0/30", []string{"10.0.0.1/32"}, 2},
		{"10.0.0.0/24", []string{"10.0.0.0/8"}, 0},
	} {
		p := qos.New(object(t, fmt.Sprintf("[{dscp: 1, classifier: {to: [{ipBlock: {cidr: %q, except: [%s]}}]}}]", c.cidr, strings.Join(c.except, ", "))))
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		if got := p.Rules[0].To[0].Addresses.Prefixes(); len(got) != c.want {
			t.Errorf("%s without %v: %d prefixes, want %d: %v", c.cidr, c.except, len(got), c.want, got)
		}
	}
}

func object(t testing.TB, egress string) *v1alpha1.NetworkQoS {
	t.Helper()
	objects, err := qostest.Objects([]byte("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {name: q, namespace: ns}\nspec: {priority: 1, egress: " + egress + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return objects[0]
}

// TestBounds: an object that is too large for a node is refused in a bounded answer.
func TestBounds(t *testing.T) {
	for name, egress := range map[string]string{
		"rules":         "[" + strings.Repeat("{dscp: 1}, ", 21) + "]",
		"destinations":  "[{dscp: 1, classifier: {to: [" + strings.Repeat("{podSelector: {}}, ", 65) + "]}}]",
		"that are pods": "[" + strings.Repeat("{dscp: 1, classifier: {to: ["+strings.Repeat("{podSelector: {}}, ", 33)+"]}}, ", 2) + "]",
		"values":        "[{dscp: 1, classifier: {to: [{podSelector: {matchExpressions: [{key: a, operator: In, values: [" + strings.Repeat("b, ", 256) + "]}]}}]}}]",
		"entries":       "[{dscp: 1, classifier: {ports: [" + strings.Repeat("{protocol: TCP}, ", 65) + "]}}]",
		"up to here":    "[{dscp: 1, classifier: {to: [" + strings.Repeat("{ipBlock: {cidr: 10.0.0.0/8, except: ["+strings.Repeat("10.0.0.1, ", 200)+"]}}, ", 6) + "]}}]",
		"prefixes":      "[{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8, except: [" + strings.Repeat("10.0.0.1, ", 257) + "]}}]}}]",
	} {
		err := qos.New(object(t, egress)).Err
		if err == nil || !strings.Contains(err.Error(), name+", at most") {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := object(t, "[{dscp: 1}]")
	for range 20 {
		o.Spec.Egress = append(o.Spec.Egress[:0:0], append(o.Spec.Egress, object(t, `[{dscp: 99, bandwidth: {burst: 0}}]`).Spec.Egress...)...)
	}
	o.Spec.Egress = o.Spec.Egress[:20]
	if got := strings.Count(qos.New(o).Err.Error(), "\n") + 1; got != 33 {
		t.Errorf("an answer of %d lines", got)
	}
}

// FuzzNew: any object that decodes has rules, or an error of bounded size.
func FuzzNew(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for doc := range bytes.SplitSeq(archive.Files[0].Data, []byte("---\n")) {
			f.Add(doc)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := qostest.Objects(data)
		if err != nil {
			return
		}
		for _, o := range objects {
			p := qos.New(o)
			switch {
			case p.Err != nil && (len(p.Rules) > 0 || len(p.Err.Error()) > 64<<10):
				t.Errorf("%d rules, and an error of %d bytes", len(p.Rules), len(p.Err.Error()))
			case p.Err == nil && len(p.Rules) != len(o.Spec.Egress):
				t.Errorf("%d rules of %d", len(p.Rules), len(o.Spec.Egress))
			}
			for _, r := range p.Rules {
				if r.DSCP > 63 || r.Precedence < 10000 || r.Precedence > 12019 || r.BurstKbit > 0 && r.RateKbit == 0 {
					t.Errorf("rule %+v", r)
				}
			}
		}
	})
}
