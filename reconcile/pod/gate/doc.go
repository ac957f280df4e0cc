// Package gate owns the gates of claims: files of the Container Device Interface
// without which a container that consumes a claim cannot be created.
//
// When a claim is prepared, kubelet receives the CDI device ID(uid). While the gate is
// closed there is no file that defines it, and a runtime refuses to create a container with
// a device it cannot resolve. So a hook that was missed or cut short cannot lead to a
// container without its network: only Open, which is called when every topology of the
// claim is verified in a sandbox, writes the file. An open gate belongs to one sandbox. It
// adds two things to a container. An environment variable names the claim and the sandbox,
// so that the hook can refuse a container of another sandbox (Consumed). And the sandbox's
// network namespace is mounted, read-only, from its path: when the sandbox ends, the path
// no longer exists, and a container of the next sandbox finds no source for the mount and
// is not started, even while no agent runs to close the gate or the runtime has cached a
// gate that was closed.
//
// A gate that is held (Hold) is closed, but its device can be resolved: the runtime
// calls the hook for the container, which returns why it is refused. The device's mount
// has no source that could exist, so that an answer is not needed to keep the container
// from starting.
//
// The package writes files and decides nothing.
package gate
