package main

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/integration/fleet"
)

// configuration is written by periodic each time: all that a pod's links have
// set but their making, which would fail each time. One process and one socket for
// all of it is the least a script can do.
const configuration = `link set net1 mtu 9000 up
link set net2 mtu 9000 up
link set net1 master bond0
link set net2 master bond0
link set bond0 mtu 9000 up
link set bond0 type bond miimon 100
link set data0 mtu 9000 up
link set mgmt0 mtu 1500 up
addr replace 10.100.0.5/24 dev data0
addr replace 10.200.0.5/24 dev mgmt0
route replace 10.100.0.0/16 via 10.100.0.1 dev data0 proto 112
route replace default via 10.200.0.1 dev mgmt0 proto 112
`

// periodic applies the whole configuration of every pod by ip(8) at fixed intervals.
type periodic struct {
	rounds atomic.Int64
	wall   []time.Duration // of each round
}

func (r *periodic) round(ctx context.Context, pods []fleet.Pod) error {
	start := time.Now()
	for _, p := range pods {
		cmd := exec.CommandContext(ctx, "ip", "-n", filepath.Base(p.Netns), "-batch", "-")
		cmd.Stdin = strings.NewReader(configuration)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, out)
		}
	}
	r.rounds.Add(1)
	r.wall = append(r.wall, time.Since(start))
	return nil
}

// keep applies it with a period, as long as ctx lives: at once again when a round
// took longer than that.
func (r *periodic) keep(ctx context.Context, pods []fleet.Pod, period time.Duration) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := r.round(ctx, pods); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// periodicCost is the processor time of periodic, and how late it repaired.
type periodicCost struct {
	cpu, wall time.Duration
	rounds    int64
	round     []time.Duration
	repairs   []time.Duration
}

// measurePeriodic lets periodic maintain the pods for a while, in which routes are deleted at
// even distances.
func measurePeriodic(ctx context.Context, pods []fleet.Pod, period, lasting time.Duration, n int) (periodicCost, error) {
	var r periodic
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	before := children()
	start := time.Now()
	go func() {
		defer cancel() // nothing would repair it
		failed <- r.keep(ctx, pods, period)
	}()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var out periodicCost
	var err error
	away := map[int]bool{} // pods whose route has not come back yet
	for i := range n {
		time.Sleep(lasting / time.Duration(n))
		which := i * 7 % len(pods)
		mu.Lock()
		if away[which] {
			mu.Unlock()
			continue
		}
		away[which] = true
		mu.Unlock()
		wg.Go(func() {
			took, e := untilBack(ctx, pods[which], 2*time.Minute)
			mu.Lock()
			defer mu.Unlock()
			away[which] = false
			if e != nil {
				err = e
				return
			}
			out.repairs = append(out.repairs, took)
		})
	}
	out.cpu, out.wall, out.rounds = children()-before, time.Since(start), r.rounds.Load()
	wg.Wait() // the last repairs need another round
	cancel()
	err = cmp.Or(<-failed, err)
	out.round = r.wall
	return out, err
}

// children is the processor time of all child processes that have ended.
func children() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
