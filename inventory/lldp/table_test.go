package lldp

import (
	"fmt"
	"testing"
	"time"

	"github.com/plumbline/plumbline/inventory"
)

// heard is a Table with one port, and its clock.
type heard struct {
	Table
	t   *testing.T
	now time.Time
}

const eth0 = "eth0"

func newHeard(t *testing.T) *heard {
	h := &heard{t: t, now: time.Unix(0, 0)}
	h.Follow(map[string]bool{eth0: true}, h.now)
	return h
}

func says(from, system string, ttl time.Duration) Frame {
	return Frame{Speaker: from + "/chassis/port", Neighbour: inventory.Neighbour{Switch: system, Port: "1"}, TTL: ttl}
}

// hears lets time pass and takes a frame. changed is whether more is known than before.
func (h *heard) hears(after time.Duration, f Frame, changed bool) {
	h.t.Helper()
	h.now = h.now.Add(after)
	if have := h.Heard(eth0, f, h.now); have != changed {
		h.t.Errorf("after %s: %q changes %t, want %t", h.now.Sub(time.Unix(0, 0)), f.Switch, have, changed)
	}
}

// knows lets time pass. The name "-" is of a port of which nothing is known yet.
func (h *heard) knows(after time.Duration, system string) {
	h.t.Helper()
	h.now = h.now.Add(after)
	have := "-"
	if n := h.Known(eth0, h.now); n != nil {
		have = n.Switch
	}
	if have != system {
		h.t.Errorf("after %s: %q is known, want %q", h.now.Sub(time.Unix(0, 0)), have, system)
	}
}

const ttl = 2 * time.Minute

func TestTable(t *testing.T) {
	for name, test := range map[string]func(h *heard){
		"a switch": func(h *heard) {
			h.knows(0, "-")
			h.hears(time.Second, says("a", "leaf", ttl), true)
			h.knows(0, "leaf")
			h.hears(30*time.Second, says("a", "leaf", ttl), false)
			h.knows(ttl-time.Second, "leaf")
			h.knows(time.Second, "")
			h.hears(time.Hour, says("b", "other", ttl), true)
			h.knows(0, "other")
		},
		"two that nobody knows": func(h *heard) {
			h.hears(0, says("a", "leaf", 0), false)
			h.hears(time.Second, says("a", "leaf", ttl), true)
			h.hears(time.Second, says("b", "forged", ttl), false)
			h.knows(0, "leaf")
			h.hears(ttl-2*time.Second, says("b", "forged", ttl), false)
			h.hears(2*time.Second, says("b", "forged", ttl), true) // it is alone
			h.knows(ttl-1, "forged")
		},
		"two after a silence": func(h *heard) {
			h.hears(0, says("a", "leaf", minTTL), true)
			h.hears(minTTL-time.Second, says("b", "forged", ttl), false)
			h.hears(2*time.Second, says("b", "forged", ttl), false)
			h.knows(0, "-") // not: that there is none
			h.hears(30*time.Second, says("a", "leaf", ttl), false)
			h.knows(0, "-")
			for range 10 {
				h.hears(30*time.Second, says("b", "forged", ttl), false)
				h.hears(time.Second, says("a", "leaf", ttl), false)
			}
			h.knows(0, "-")
			h.hears(contested, says("a", "leaf", ttl), true)
		},
		"a flood of senders": func(h *heard) {
			h.hears(0, says("a", "leaf", minTTL), true)
			for i := range 1000 {
				h.hears(time.Second/10, says(fmt.Sprint("b", i), "forged", ttl), false)
			}
			h.knows(0, "-")
			if n := len(h.ports[eth0].heard); n > maxSpeakers {
				h.t.Errorf("%d senders are kept", n)
			}
		},
		"nobody": func(h *heard) {
			h.knows(waitFor-1, "-")
			h.knows(1, "")
		},
		"another name": func(h *heard) {
			h.hears(0, says("a", "leaf", ttl), true)
			h.hears(30*time.Second, says("a", "renamed", ttl), false)
			h.hears(30*time.Second, says("a", "renamed", ttl), false)
			h.knows(0, "leaf")
			h.hears(30*time.Second, says("a", "renamed", ttl), true)
			h.knows(0, "renamed")
		},
		"another name each second": func(h *heard) {
			h.hears(0, says("a", "leaf", ttl), true)
			for i := range 3600 {
				h.hears(time.Second, says("a", fmt.Sprint("leaf-", i), ttl), false)
			}
			h.knows(0, "leaf")
		},
		"gone and there each second": func(h *heard) {
			changes := 0
			for i := range 3600 {
				h.now = h.now.Add(time.Second)
				if h.Heard(eth0, says("a", fmt.Sprint("leaf-", i), time.Second), h.now) {
					changes++
				}
				h.Heard(eth0, says("a", "", 0), h.now)
			}
			if changes > 60 {
				h.t.Errorf("%d changes in an hour", changes)
			}
		},
		"a pod beside the switch": func(h *heard) {
			h.hears(0, says("a", "leaf", ttl), true)
			for range 3600 {
				h.hears(time.Second, says("pod", "forged", time.Hour), false)
				if h.now.Unix()%30 == 0 {
					h.hears(0, says("a", "leaf", ttl), false)
				}
			}
			h.knows(0, "leaf")
		},
		"a speaker that says it will be silent": func(h *heard) {
			h.hears(0, says("a", "leaf", time.Hour), true)
			h.hears(0, says("pod", "", 0), false)
			h.knows(30*time.Minute, "leaf")
			h.hears(0, says("a", "", 0), false)
			h.knows(minTTL-1, "leaf")
			h.knows(1, "")
		},
		"a time to live without end": func(h *heard) {
			h.hears(0, says("a", "leaf", 65535*time.Second), true)
			h.knows(maxTTL-1, "leaf")
			h.knows(1, "")
		},
		"a cable that is moved": func(h *heard) {
			h.hears(0, says("a", "leaf", ttl), true)
			h.Follow(map[string]bool{eth0: false}, h.now)
			h.knows(time.Hour, "leaf") // the device is tainted as link-down
			h.Follow(map[string]bool{eth0: true}, h.now)
			h.hears(time.Second, says("b", "other", ttl), false)
			h.hears(30*time.Second, says("b", "other", ttl), false)
			h.hears(30*time.Second, says("b", "other", ttl), true)
			h.knows(0, "other")
		},
		"a port that goes": func(h *heard) {
			h.hears(0, says("a", "leaf", ttl), true)
			h.Follow(map[string]bool{}, h.now)
			h.knows(0, "-")
			h.hears(0, says("a", "leaf", ttl), false)
		},
		"remembered": func(h *heard) {
			h.Table = Table{}
			h.Seed(eth0, inventory.Neighbour{Switch: "leaf", Port: "1"}, h.now)
			h.Follow(map[string]bool{eth0: true}, h.now)
			h.knows(0, "leaf")
			h.hears(time.Minute, says("a", "leaf", ttl), false)
			h.knows(time.Minute, "leaf")
		},
		"remembered, and nobody is there": func(h *heard) {
			h.Table = Table{}
			h.Seed(eth0, inventory.Neighbour{Switch: "leaf", Port: "1"}, h.now)
			h.Follow(map[string]bool{eth0: true}, h.now)
			h.knows(waitFor-1, "leaf")
			h.knows(1, "")
		},
	} {
		t.Run(name, func(t *testing.T) { h := newHeard(t); test(h) })
	}
}
