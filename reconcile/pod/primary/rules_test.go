package primary

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRules holds that an ADD waits until it is known which NetworkQoS objects cover the pod, that its network is applied with their
// rules, that a change reaches it, that it keeps what it has while that is not known, and that a call for no pod has none.
func TestRules(t *testing.T) {
	s := newServer(t)
	var asked, changes atomic.Int32
	var known table.Changes
	s.KnownBy = &known
	mark := "10"
	var failed error
	s.Known = func(namespace string, pod claims.Pod) error {
		if namespace != "ns" || pod != (claims.Pod{Name: "p", UID: "u"}) {
			return errors.New("another pod")
		}
		if asked.Add(1) < 3 {
			known.Changed() // while it answers
			return fault.New(fault.NotReady, errors.New("not read yet"))
		}
		return nil
	}
	s.Rules = func(sb *reconcile.Sandbox) (ops.Rules, error) {
		if *sb.Pod != (reconcile.Pod{Namespace: "ns", Name: "p", UID: "u"}) {
			return ops.Rules{}, errors.New("another pod")
		}
		return ops.Rules{Filters: []netstate.Filter{{Rule: mark}}}, failed
	}
	s.Changed = func() { changes.Add(1) }
	add := func(container, args string) string {
		reply := s.Do(t.Context(), cnisocket.Request{
			Command: cnisocket.Add, Container: container, IfName: "eth0", Netns: filepath.Join(s.NetnsDir, container), Config: json.RawMessage(`{"name": "plumbline"}`), Args: args,
		})
		if reply.Error != nil {
			return reply.Error.Error()
		}
		return ""
	}
	owner := reconcile.OwnerOfPrimary("c", "eth0")
	has := func() string {
		rec, _, err := s.book.Record(reconcile.IDOfPrimary("c", "eth0", "pods"))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range rec.Sandbox.Filters {
			out = append(out, f.Rule)
		}
		return strings.Join(out, " ")
	}
	if err := add("c", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"); err != "" || has() != "10" || asked.Load() != 3 || changes.Load() != 1 {
		t.Fatalf("ADD: %s: rules %q, asked %d times", err, has(), asked.Load())
	}
	if changed, err := s.Refilter(t.Context(), owner); changed || err != nil {
		t.Errorf("without a change: %t, %v", changed, err)
	}
	mark = "20"
	if changed, err := s.Refilter(t.Context(), owner); !changed || err != nil || has() != "20" {
		t.Errorf("an edit: %t, %v: rules %q", changed, err, has())
	}
	mark, failed = "30", fault.New(fault.NotReady, errors.New("not known"))
	if changed, err := s.Refilter(t.Context(), owner); changed || fault.Of(err) != fault.NotReady || has() != "20" {
		t.Errorf("not known: %t, %v: rules %q", changed, err, has())
	}
	failed = nil
	if err := add("c", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"); err != "" || has() != "30" {
		t.Errorf("ADD again: %s: rules %q", err, has())
	}
	if err := add("by-hand", ""); err != "" {
		t.Errorf("ADD for no pod: %s", err)
	}
	changes.Store(0)
	if err := s.call(cnisocket.Del, "c", ""); err != "" || has() != "" || changes.Load() != 1 {
		t.Errorf("DEL: %s: rules %q, %d changes", err, has(), changes.Load())
	}
	if changed, err := s.Refilter(t.Context(), owner); changed || err != nil {
		t.Errorf("after DEL: %t, %v", changed, err)
	}
}
