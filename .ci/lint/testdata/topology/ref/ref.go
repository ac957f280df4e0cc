// Package ref stands for the real one.
package ref

// Known is here to be imported.
const Known = "ref"
