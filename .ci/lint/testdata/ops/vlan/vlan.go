// Package vlan stands for the real one.
package vlan

// Known is here to be imported.
const Known = "vlan"
