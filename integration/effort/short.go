//go:build !soak

package effort

const long = false
