package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/fleet"
)

// untilBack deletes a pod's route and returns how long it stays away: from the end
// of the deletion to the kernel's notice that the route is back.
func untilBack(ctx context.Context, pod fleet.Pod, limit time.Duration) (time.Duration, error) {
	ns, err := netns.GetFromPath(pod.Netns)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	notices, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribeWithOptions(notices, done, netlink.RouteSubscribeOptions{Namespace: &ns}); err != nil {
		return 0, err
	}
	link, err := h.LinkByName(fleet.Route.Link)
	if err != nil {
		return 0, err
	}
	_, dst, err := net.ParseCIDR(fleet.Route.Dst)
	if err != nil {
		return 0, err
	}
	if err := h.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: net.ParseIP(fleet.Route.Gateway)}); err != nil {
		return 0, err
	}
	start := time.Now()
	alarm := time.NewTimer(limit)
	defer alarm.Stop()
	for {
		select {
		case u := <-notices:
			if u.Type == unix.RTM_NEWROUTE && u.Dst != nil && u.Dst.String() == dst.String() {
				return time.Since(start), nil
			}
		case <-alarm.C:
			return 0, errors.New("the route did not come back")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// drifts deletes n routes, one after the other and each of another pod in turn, and
// returns how long each was away.
func drifts(ctx context.Context, pods []fleet.Pod, n int) ([]time.Duration, error) {
	// Five repairs of one field within ten seconds are contention, and repairs slow
	// down.
	pause := max(50*time.Millisecond, 2600*time.Millisecond/time.Duration(len(pods)))
	var out []time.Duration
	for i := range n {
		took, err := untilBack(ctx, pods[i*7%len(pods)], time.Minute)
		if err != nil {
			return nil, err
		}
		out = append(out, took)
		time.Sleep(pause)
	}
	return out, nil
}
