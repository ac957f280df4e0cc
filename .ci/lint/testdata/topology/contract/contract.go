// Package contract stands for the real one.
package contract

// Known is here to be imported.
const Known = "contract"
