module github.com/vishvananda/netns

go 1.26.0
