package draplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/fault"
)

// scans lists the devices of the host for requests that arrive at the same time. What one gets
// was listed after it had asked; all that ask while a listing runs share the next one. A listing
// reads some files for each interface of the host, of which every pod may have one.
type scans struct {
	list func() ([]inventory.Device, error)

	mu      sync.Mutex
	running bool
	next    *scan // of those that have asked while one runs
}

type scan struct {
	done    chan struct{}
	devices []inventory.Device
	err     error
}

// discover waits for a listing until ctx ends. The listing continues: nothing ends a read of sysfs that a driver does not answer.
func (s *scans) discover(ctx context.Context) ([]inventory.Device, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &scan{done: make(chan struct{})}
	}
	mine := s.next
	if !s.running {
		s.running = true
		go s.run()
	}
	s.mu.Unlock()
	select {
	case <-mine.done:
		return slices.Clone(mine.devices), mine.err
	case <-ctx.Done():
		return nil, fault.New(fault.NotReady, fmt.Errorf(
			"the devices of the host are still being read, which a driver may not answer: see dmesg of the node: %w", context.Cause(ctx)))
	}
}

// run lists until nobody waits.
func (s *scans) run() {
	for {
		s.mu.Lock()
		of := s.next
		s.next, s.running = nil, of != nil
		s.mu.Unlock()
		if of == nil {
			return
		}
		of.devices, of.err = s.list()
		close(of.done)
	}
}
