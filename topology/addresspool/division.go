package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// CheckDivision checks what ipam of type multi-nic-ipam says by itself, without its pool.
// The error is a
// contract.FieldError or contract.Errors, with the paths of fields in ipam.
func CheckDivision(c topology.IPAM) error {
	if c.HostBlock == nil {
		return fieldError("hostBlock", "is missing: write that of the AddressPool")
	}
	ifaces := c.InterfaceBits()
	if ifaces < 0 || ifaces > MaxInterfaceBits {
		return fieldError("interfaceBlock", "%d is not from 0 to %d bits", ifaces, MaxInterfaceBits)
	}
	if c.Interface < 0 || c.Interface >= 1<<ifaces {
		return fieldError("interfaceBlock", "%d bits are for %d interfaces, counted from 0, and the step is for interface %d: "+
			"a pool with a larger interfaceBlock is needed", ifaces, 1<<ifaces, c.Interface)
	}
	if c.Subnet == "" {
		return nil
	}
	_, err := New(Spec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: c.Subnet}}, Exclude: c.ExcludeCIDRs, HostBlock: *c.HostBlock, InterfaceBlock: ifaces,
	})
	if err == nil {
		return nil
	}
	wrong := problems(FieldErrors(err))
	for i, f := range wrong {
		switch index, excluded := strings.CutPrefix(f.Field, "exclude"); {
		case excluded:
			wrong[i].Field = "excludeCIDRs" + index
		case strings.HasPrefix(f.Field, "subnets"):
			wrong[i].Field = "subnet"
		}
	}
	return wrong.err()
}

// Agrees returns an error if the layout of a pool differs from the ipam of a step. The pool may have more subnets, such as of the
// other family, and more exclusions. A pool that was made of a network's subnets must have exactly these.
func (l *Layout) Agrees(c topology.IPAM) error {
	if len(c.Subnets) > 0 {
		return l.agreesWithNetwork(c)
	}
	wrong := func(field, format string, args ...any) error {
		return fieldError("ipam."+field, "%s %q %s", v1alpha1.AddressPoolKind, l.Name, fmt.Sprintf(format, args...))
	}
	if c.HostBlock != nil && *c.HostBlock != l.hostBits {
		return wrong("hostBlock", "has %d bits, and the step says %d: write the pool's, or name another pool", l.hostBits, *c.HostBlock)
	}
	if ifaces := c.InterfaceBits(); c.HostBlock != nil && ifaces != l.ifBits {
		return wrong("interfaceBlock", "has %d bits, and the step says %d: write the pool's, or name another pool", l.ifBits, ifaces)
	}
	if c.Subnet != "" && !slices.ContainsFunc(l.subnets, func(s subnet) bool { return s.prefix.String() == c.Subnet }) {
		return wrong("subnet", "has no subnet %q, only %s: write one of these, or name another pool", c.Subnet, l.prefixes())
	}
	for i, text := range c.ExcludeCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fieldError(fmt.Sprintf("ipam.excludeCIDRs[%d]", i), "%q is not a prefix such as 192.0.2.0/24", text)
		}
		if from, gives := l.Gives(p); gives {
			return wrong(fmt.Sprintf("excludeCIDRs[%d]", i), "allocates addresses of %q in %s: add it to exclude there", text, from)
		}
	}
	return nil
}

// agreesWithNetwork is Agrees for the pool of the subnets of a network.
func (l *Layout) agreesWithNetwork(c topology.IPAM) error {
	own := topology.IPAM{Pool: c.Pool}
	for i := range l.subnets {
		own.Subnets = append(own.Subnets, l.subnets[i].prefix.String())
	}
	if own.Network() != c.Network() {
		return fieldError("subnets", "%s %q of this network has %s, and the step says %s", v1alpha1.AddressPoolKind, l.Name, l.prefixes(),
			strings.Join(c.Subnets, " and "))
	}
	for _, text := range c.ExcludeCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			if from, gives := l.Gives(p); gives {
				return fieldError("excludeSubnets", "%s %q of this network does not exclude %q of %s",
					v1alpha1.AddressPoolKind, l.Name, text, from)
			}
		}
	}
	return nil
}

// OfSubnets returns the pool of the subnets of a network, as a step has them.
func OfSubnets(c topology.IPAM) *v1alpha1.AddressPool {
	o := &v1alpha1.AddressPool{}
	o.Name, o.Spec.Exclude = c.Pool, c.ExcludeCIDRs
	o.Labels = map[string]string{v1alpha1.LabelSubnets: c.Pool}
	if c.Switch != "" {
		o.Annotations = map[string]string{v1alpha1.AnnotationSwitch: c.Switch}
	}
	for _, p := range c.Subnets {
		o.Spec.Subnets = append(o.Spec.Subnets, v1alpha1.AddressSubnet{Prefix: p})
	}
	return o
}

// IPAM is what steps say that have the subnets of a pool (OfSubnets).
func IPAM(o *v1alpha1.AddressPool) topology.IPAM {
	c := topology.IPAM{Pool: o.Name}
	for _, s := range o.Spec.Subnets {
		c.Subnets = append(c.Subnets, s.Prefix)
	}
	return c
}

func (l *Layout) prefixes() string {
	var out []string
	for i := range l.subnets {
		out = append(out, l.subnets[i].prefix.String())
	}
	return strings.Join(out, " and ")
}
