module github.com/plumbline/plumbline

go 1.26.0

require (
	github.com/vishvananda/netlink v0.0.0
	github.com/vishvananda/netns v0.0.0
	golang.org/x/sys v0.0.0
	k8s.io/api v0.0.0
)

replace (
	github.com/vishvananda/netlink => ./stub/netlink
	github.com/vishvananda/netns => ./stub/netns
	golang.org/x/sys => ./stub/sys
	k8s.io/api => ./stub/k8s
)
