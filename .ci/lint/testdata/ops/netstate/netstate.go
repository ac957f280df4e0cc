// Package netstate stands for the real one.
package netstate

// Known is here to be imported.
const Known = "netstate"
