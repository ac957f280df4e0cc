// Package maintenance takes devices out of service by hand: it makes the DeviceTaintRules
// for that, and says which pods use the devices.
package maintenance
