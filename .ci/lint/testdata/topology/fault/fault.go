// Package fault stands for the real one.
package fault

// Known is here to be imported.
const Known = "fault"
