// Package topology stands for the real one.
package topology

// Known is here to be imported.
const Known = "topology"
