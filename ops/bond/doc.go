// Package bond is the step type "bond": a bonding link over interfaces of the
// sandbox. Sources: bond-cni,
// Documentation/networking/bonding.rst.
package bond
