// Package suggest stands for the real one.
package suggest

// Known is here to be imported.
const Known = "suggest"
