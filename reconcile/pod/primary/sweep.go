package primary

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology/fault"
)

// collect releases what is not in the runtime's list. The runtime makes no ADD meanwhile
// (CNI 1.1, GC); what another call works on is left to that call.
func (s *Server) collect(ctx context.Context, valid []types.GCAttachment) error {
	keep := map[string]bool{}
	for _, a := range valid {
		keep[reconcile.OwnerOfPrimary(a.ContainerID, a.IfName)] = true
	}
	owners, err := s.owners()
	errs := []error{err}
	for _, owner := range owners {
		if !keep[owner] && !s.locks.busy(owner) {
			errs = append(errs, ended(s.release(ctx, owner, because("the container runtime does not know it any more"))))
		}
	}
	return errors.Join(errs...)
}

// owners lists all that have a record or addresses.
func (s *Server) owners() ([]string, error) {
	known := map[string]bool{}
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	for owner := range records {
		known[owner] = true
	}
	grants, err := s.Addresses.Grants()
	for _, g := range grants {
		if _, _, ours := reconcile.ParseOwner(g.Claim); ours {
			known[g.Claim] = true
		}
	}
	return slices.Sorted(maps.Keys(known)), err
}

// records returns the sandboxes by owner. On an error some may be missing. A record that is
// damaged is none: it was set aside.
func (s *Server) records() (map[string][]reconcile.SandboxID, error) {
	ids, errs := s.Engine.IDs()
	var failed []error
	for _, err := range errs {
		if frame.IsDamage(err) { // reported to whoever asks first
			s.Log.Error("a record cannot be read", "error", err)
			continue
		}
		failed = append(failed, err)
	}
	out := map[string][]reconcile.SandboxID{}
	for _, id := range ids {
		if o := id.Origin(); o.Container != "" {
			owner := reconcile.OwnerOfPrimary(o.Container, o.Interface)
			out[owner] = append(out[owner], id)
		}
	}
	return out, errors.Join(failed...)
}

// unreadable returns the owners of records that another version has written.
func (s *Server) unreadable() map[string]bool {
	out := map[string]bool{}
	for _, other := range s.Engine.OtherVersions() {
		for text := range other.Mentions {
			if o := reconcile.SandboxID(text).Origin(); o.Container != "" {
				out[reconcile.OwnerOfPrimary(o.Container, o.Interface)] = true
			}
		}
	}
	return out
}

// InUse reports whether pods have, or may have, something of this network: not those of an
// earlier boot.
func (s *Server) InUse() (bool, error) {
	records, err := s.records()
	for _, ids := range records {
		for _, id := range ids {
			rec, known, err := s.Engine.Record(id)
			if err != nil || known && rec.BootID == s.BootID {
				return true, nil
			}
		}
	}
	return len(s.unreadable()) > 0, err
}

// Owns reports whether addresses are owned by pods of this network, so that Run ends them.
func Owns(claim string) bool {
	_, _, ours := reconcile.ParseOwner(claim)
	return ours
}

// orphanedFor is how long addresses have no record before they are given back: an ADD,
// perhaps of another agent, records a sandbox after it was given addresses.
const orphanedFor = 5 * time.Minute

// sweep releases sandboxes whose namespace is gone: those of an earlier boot, and those whose namespace this process has
// seen, or would see. Any other that is missing proves nothing: the runtime's directory may not be mounted here.
func (s *Server) sweep(ctx context.Context) {
	records, err := s.records()
	if err != nil {
		s.Log.Error("cannot search for pods whose network namespace is gone", "error", err)
		return
	}
	for owner := range records {
		if ctx.Err() != nil {
			return
		}
		if s.locks.busy(owner) {
			continue
		}
		if err := s.release(ctx, owner, s.ended); err != nil {
			s.Log.Warn("cannot release the network of a pod", "owner", owner, "kind", fault.Of(err), "error", err)
		}
	}
	grants, err := s.Addresses.Grants()
	if err != nil {
		s.Log.Error("cannot read which pods have addresses", "error", err)
		return
	}
	damaged, err := s.Damaged()
	if err != nil || len(damaged) > 0 {
		return // they may be of pods that run
	}
	now, unreadable := s.Now(), s.unreadable()
	orphans := map[string]time.Time{}
	for _, g := range grants {
		if !Owns(g.Claim) || len(records[g.Claim]) > 0 || unreadable[g.Claim] || s.locks.busy(g.Claim) {
			continue
		}
		since, known := s.orphaned[g.Claim]
		if !known {
			since = now
		}
		if now.Sub(since) < orphanedFor {
			orphans[g.Claim] = since
			continue
		}
		if err := s.release(ctx, g.Claim, because("its addresses have no record")); err != nil {
			s.Log.Warn("failed to return addresses", "owner", g.Claim, "error", err)
		}
	}
	s.orphaned = orphans
}

// ended says why the sandboxes of an owner have ended, "" if they have not.
func (s *Server) ended(owner string) string {
	ids, err := s.sandboxes(owner)
	if err != nil || len(ids) == 0 {
		return ""
	}
	for _, id := range ids {
		rec, known, err := s.Engine.Record(id)
		switch {
		case err != nil || !known:
			return ""
		case rec.BootID != s.BootID:
			return "the machine was booted since"
		}
		if _, err := s.Identify(rec.Sandbox.Netns); err == nil {
			s.saw(owner)
			return ""
		} else if fault.Of(err) != fault.Gone {
			return ""
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// One that an earlier process has recorded, such as in an ADD in which it was killed: it has
	// ended if this process would see it.
	if s.seen[owner] || s.sees && s.Propagates(s.NetnsDir) {
		return "its namespace does not exist any more"
	}
	return ""
}

// propagates reports whether a process sees in a folder what is mounted there outside its
// container: nothing is mounted at the folder itself, or with propagation from the host
// (mount_namespaces(7)).
func propagates(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && propagatesIn(string(data), dir)
}

func propagatesIn(mountinfo, dir string) bool {
	out := true
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 7 || f[4] != dir {
			continue
		}
		out = false // a later line is of what covers it
		for _, tag := range f[6:] {
			if tag == "-" {
				break
			}
			out = out || strings.HasPrefix(tag, "master:") || strings.HasPrefix(tag, "shared:")
		}
	}
	return out
}

func because(why string) func(string) string { return func(string) string { return why } }

// release is DEL without a call of the runtime, if an owner has ended: why is asked when no
// call for it is in progress, and says "" if it has not.
func (s *Server) release(ctx context.Context, owner string, why func(owner string) string) error {
	unlock, err := s.locks.take(ctx, owner)
	if err != nil {
		return err
	}
	defer unlock()
	reason := why(owner)
	if reason == "" {
		return nil
	}
	if err := s.del(ctx, owner); err != nil {
		return err
	}
	s.Log.Info("released the network of a pod", "owner", owner, "reason", reason)
	return nil
}
