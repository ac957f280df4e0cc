// Package nearest stands for the real one.
package nearest

// Known is here to be imported.
const Known = "nearest"
