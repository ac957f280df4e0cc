package draplugin

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/inventory"
)

// TestScans: what a request gets was listed after it had asked, and requests that ask while a
// listing runs share the next one.
func TestScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		lists := 0
		s := &scans{list: func() ([]inventory.Device, error) {
			lists++
			at := time.Since(began)
			time.Sleep(time.Second)
			return []inventory.Device{{Name: at.String()}}, fmt.Errorf("list %d", lists)
		}}
		var all sync.WaitGroup
		for i := range 40 { // for four seconds, ten in each
			all.Go(func() {
				asked := time.Duration(i) * 100 * time.Millisecond
				time.Sleep(asked)
				devices, err := s.discover()
				if len(devices) != 1 || err == nil {
					t.Errorf("%v %v", devices, err)
					return
				}
				at, err := time.ParseDuration(devices[0].Name)
				if err != nil || at < asked || at >= asked+time.Second+time.Millisecond {
					t.Errorf("asked after %s and listed after %s: %v", asked, at, err)
				}
				devices[0].Name = "of one request" // not of the others
			})
		}
		all.Wait()
		if lists > 6 {
			t.Errorf("%d listings in five seconds, of one second each", lists)
		}
		if _, err := s.discover(); err == nil || err.Error() != fmt.Sprintf("list %d", lists) {
			t.Errorf("later, of %d: %v", lists, err)
		}
	})
}
