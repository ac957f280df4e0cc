// Package effort decides how long and how thorough a test is.
//
// Tests have a short form, which every change waits for (make test), and may have a long
// form, which an issue waits for (make test-all). The build tag soak chooses the long form.
// A test that has no short form stands in a file with that build tag; a test that has both
// uses [Long], [Stride] or [Sample], or [Duration] if it is random. A random test takes its seed from [Seed], so
// that no two runs are alike and each can be repeated.
//
// Only tests import it. PLUMBLINE_SOAK and PLUMBLINE_SEED also reach tests in
// the machine of integration/vm.
package effort
