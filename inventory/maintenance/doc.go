// Package maintenance takes devices out of service: it creates the DeviceTaintRules, and
// lists the pods that use the devices.
package maintenance
