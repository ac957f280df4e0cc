// Package netns says which network namespace a path leads to.
package netns

import (
	_ "log" // want depguard

	_ "github.com/plumbline/plumbline/ops" // want depguard
)
