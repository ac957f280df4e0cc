package draplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/fault"
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
				devices, err := s.discover(t.Context())
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
		if _, err := s.discover(t.Context()); err == nil || err.Error() != fmt.Sprintf("list %d", lists) {
			t.Errorf("later, of %d: %v", lists, err)
		}
	})
}

// TestScanHangs: while a driver does not answer a listing, requests wait for as long as the kubelet does, and say why they end.
func TestScanHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s := &scans{list: func() ([]inventory.Device, error) {
			<-answers
			return []inventory.Device{{Name: "a"}}, nil
		}}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for range 3 {
			devices, err := s.discover(ctx)
			if took := time.Since(began); len(devices) > 0 || fault.Of(err) != fault.NotReady || !errors.Is(err, context.DeadlineExceeded) || took != 30*time.Second {
				t.Errorf("after %s: %v, %v", took, devices, err)
			}
		}
		close(answers)
		if devices, err := s.discover(t.Context()); len(devices) != 1 || err != nil {
			t.Errorf("later: %v, %v", devices, err)
		}
	})
}
