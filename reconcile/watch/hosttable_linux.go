package watch

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/netns"
)

const routingGroups = linkGroup |
	1<<(unix.RTNLGRP_IPV4_IFADDR-1) |
	1<<(unix.RTNLGRP_IPV6_IFADDR-1) |
	1<<(unix.RTNLGRP_IPV4_ROUTE-1) |
	1<<(unix.RTNLGRP_IPV6_ROUTE-1) |
	1<<(unix.RTNLGRP_IPV4_RULE-1) |
	1<<(unix.RTNLGRP_IPV6_RULE-1)

// Routing calls changed for notifications about links, addresses, routes and rules of the
// namespace at a path, "" for that of the process, until it is closed, and failed once if they
// cannot be read any longer. Neither may block.
func Routing(path string, changed, failed func()) (io.Closer, error) {
	h := handlers{received: func(int32, summary) { changed() }, overflow: changed, failed: func(error) { failed() }}
	if path == "" {
		l, err := listen(nil, routingGroups, false, singleBufferBytes, h)
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		return l, nil
	}
	ns, err := netns.Open(path)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	defer ns.Close()
	l, err := listen(ns, routingGroups, false, singleBufferBytes, h)
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", path, err)
	}
	return l, nil
}
