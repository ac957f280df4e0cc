package publish

import "github.com/plumbline/plumbline/inventory"

// Why says for each device, by name, why it is not offered to pods; a device that
// is offered is not in the map. It knows only the state of the host; the agent also knows
// which devices are in use, dirty or without a carrier. The devices are guarded (see
// inventory.GuardUplinks).
func Why(devices []inventory.Device) map[string]string {
	_, withheld := known{devices: devices}.offer()
	out := map[string]string{}
	for _, w := range withheld {
		out[w.Name] = w.Reason
	}
	return out
}
