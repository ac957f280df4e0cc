package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestDataOfCommands holds that each command prints its result as JSON and YAML, too, unless it has none.
func TestDataOfCommands(t *testing.T) {
	none := map[string]string{
		"plumbline": "a group", "pod": "a group", "qos": "a group",
		"agent": "runs until it is ended", "controller": "runs until it is ended", "run": "runs until it is ended",
		"support-bundle": "writes an archive",
		"probe":          "an exit status", "check-install": "an exit status",
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		has := false
		if f := c.Flags().Lookup("output"); f != nil {
			of, ok := f.Value.(*choice)
			has = ok && slices.Contains(of.words, formatJSON) && slices.Contains(of.words, formatYAML)
		}
		if _, excepted := none[c.Name()]; has == excepted {
			t.Errorf("%s: -o json and yaml: %t, excepted: %t", c.CommandPath(), has, excepted)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(stdio{}))
}
