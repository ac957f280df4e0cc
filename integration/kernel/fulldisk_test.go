package kernel

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPodEndsOnFullDisk: a pod whose network is plumbline's ends although the disk with all records is full, and nothing is left of it
// in the kernel. Its addresses are given back when there is room again.
func TestPodEndsOnFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("plumbline", disk, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n, _ := newPortNode(t, `{name: eth, type: ptp, config: {isDefaultGateway: true, ipMasq: true, dad: "off"}}`)
	n.dir = filepath.Join(disk, "journal")
	home := n.state("")
	server := n.server(&process{}, nil, "")
	defer n.run(server)()
	gone, stays := at("gone", newNetns(t)), at("stays", newNetns(t))
	gone.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80}}}
	n.add(stays)
	beside := n.state("")
	n.add(gone)
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	for range 2 { // a runtime repeats it
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, gone); err != nil {
			t.Errorf("DEL on a full disk: %v", err)
		}
	}
	n.mustEqual(beside, "", "ended on a full disk")
	if ids, errs := n.engine(nil).IDs(); len(ids) != 1 || len(errs) > 0 {
		t.Errorf("records %v, %v", ids, errs)
	}
	fill(t, filler+"2") // what the record had
	if _, err := n.cni.AddNetworkList(ctxFor(t), n.list, at("next", newNetns(t))); err == nil {
		t.Error("an ADD on a full disk succeeds")
	}
	n.mustEqual(beside, "", "after an ADD on a full disk")
	for _, f := range []string{filler, filler + "2"} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	n.add(at("last", newNetns(t)))
	for _, rt := range []string{"stays", "last", "next"} {
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, at(rt, "")); err != nil {
			t.Error(err)
		}
	}
	n.mustEqual(home, "", "all have ended")
}

// fill takes all that is left of a disk.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zeros := bytes.NewReader(make([]byte, 1<<20))
	if _, err := io.Copy(f, zeros); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk does not become full: %v", err)
	}
}
