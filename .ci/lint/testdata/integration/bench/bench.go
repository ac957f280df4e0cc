// Package bench stands for the real one.
package bench

// Known is here to be imported.
const Known = "bench"
