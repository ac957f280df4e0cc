package ops

import (
	"crypto/sha256"
	"net"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
)

// chosenMAC is the MAC of a link that no step gives one, nil for a link that has none of its own to
// be given. The kernel would choose another one each time the link is made, and gives a bridge that
// of its lowest port, so that neighbors send to one that has gone. This one is made of who has the
// link: no two sandboxes of a cluster have it. A bridge of the host belongs to all sandboxes of the
// node. A link that an earlier version has made keeps the MAC that it has.
func (p *Planner) chosenMAC(l netstate.Link) (*string, error) {
	passthru := l.MACVLAN != nil && l.MACVLAN.Mode != nil && *l.MACVLAN.Mode == "passthru" // sets that of its master
	if l.MAC != nil || !l.KindTraits().OwnMAC || passthru {
		return nil, nil
	}
	of := p.req.macOf(l.Name)
	if netstate.OnHost(l.Name) && l.KindTraits().Shared {
		of = macOf(p.req.BootID, l.Name)
	}
	if have, there := p.req.Have.Link(l.Name); there {
		switch made, ours := p.req.recorded(l.Name); {
		case !ours:
			return nil, nil
		case made.MAC != nil:
		case have.MAC != nil:
			of = *have.MAC
		default:
			return nil, nil
		}
	}
	return p.chooseMAC(l.Name, of)
}

// chosenPeerMAC is chosenMAC of the other end of a pair.
func (p *Planner) chosenPeerMAC(link, peer string) (*string, error) {
	if _, there := p.req.Have.Link(link); there {
		made, ours := p.req.recorded(link)
		if !ours || made.Veth == nil || made.Veth.PeerMAC == nil {
			return nil, nil
		}
	}
	return p.chooseMAC(peer, p.req.macOf(peer))
}

func (p *Planner) chooseMAC(link, mac string) (*string, error) {
	mac, err := p.Choose(netstate.LinkKey(link), "mac", func() (string, error) { return mac, nil })
	return &mac, err
}

// recorded returns a link that we made, as the record has it.
func (r *Request) recorded(link string) (netstate.Link, bool) {
	for _, c := range r.Owned {
		if made, ok := c.After.(netstate.Link); ok && made.Name == link && c.Before == nil {
			return made, true
		}
	}
	return netstate.Link{}, false
}

// macOf is the MAC of a link that this sandbox has.
func (r *Request) macOf(link string) string {
	return macOf(r.Client+"\x00"+r.Sandbox+"\x00"+r.Topology.Name, link)
}

// macOf makes a MAC of who has a link: unicast, and administered locally (IEEE 802, section 8.4).
func macOf(owner, link string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + link))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// withChosenMACs drops from the wants each MAC that we chose for a link to which a step gives one.
func (all wants) withChosenMACs(by claims) wants {
	out := slices.Clone(all)
	for i, w := range out {
		if _, claimed := by[w.obj.Key()]["mac"]; w.choseMAC && claimed {
			l := w.obj.(netstate.Link)
			l.MAC = nil
			out[i].obj = l
		}
	}
	return out
}
