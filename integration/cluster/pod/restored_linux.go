package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// restored deletes the IPv4 routes of a table, and shows how long it takes from then until the
// notification of the kernel that the last of them was added again: for at most a minute.
func restored(w io.Writer, table string) error {
	number, err := strconv.Atoi(table)
	if err != nil {
		return err
	}
	handle, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	updates, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribe(updates, done); err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	routes, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: number}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	if len(routes) == 0 {
		return fmt.Errorf("table %d has no routes", number)
	}
	missing := map[string]bool{}
	for i := range routes {
		if err := handle.RouteDel(&routes[i]); err != nil {
			return fmt.Errorf("delete the route to %s: %w", routes[i].Dst, err)
		}
		missing[routes[i].Dst.String()] = true
	}
	began := time.Now()
	for limit := time.After(time.Minute); len(missing) > 0; {
		select {
		case u := <-updates:
			if u.Type == unix.RTM_NEWROUTE && u.Table == number {
				delete(missing, u.Dst.String())
			}
		case <-limit:
			return fmt.Errorf("not restored within a minute: %v", missing)
		}
	}
	_, err = fmt.Fprintln(w, time.Since(began))
	return err
}
