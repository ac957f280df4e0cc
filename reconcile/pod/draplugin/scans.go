package draplugin

import (
	"slices"
	"sync"

	"github.com/plumbline/plumbline/inventory"
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

// discover implements Options.Discover.
func (s *scans) discover() ([]inventory.Device, error) {
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
	<-mine.done
	return slices.Clone(mine.devices), mine.err
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
