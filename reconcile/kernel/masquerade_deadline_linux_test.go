package kernel

import (
	"errors"
	"testing"
	"time"

	"github.com/google/nftables"
)

// TestMasqueradeDeadline: a kernel that does not answer does not keep the lock of all sandboxes.
func TestMasqueradeDeadline(t *testing.T) {
	h, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	natTimeout = -time.Second // what would be too late is so at once
	t.Cleanup(func() { natTimeout = 30 * time.Second })
	err = explainNAT(h.withNAT(func(c *nftables.Conn) error {
		_, err := readNAT(c)
		return err
	}))
	if !errors.Is(err, errUnanswered) {
		t.Errorf("answered with %v", err)
	}
	if !h.nat.TryLock() {
		t.Error("the lock is held")
	}
}
