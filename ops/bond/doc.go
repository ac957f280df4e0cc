// Package bond is the step type "bond": a bonding link over interfaces of the
// sandbox. Sources: seed 000 section 3.3 and 9.2, bond-cni,
// Documentation/networking/bonding.rst.
package bond
