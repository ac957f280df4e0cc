package binding

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGUIDs reads sysfs of functions as the kernel writes it (node_guid_show and show_port_gid in drivers/infiniband/core/sysfs.c).
func TestGUIDs(t *testing.T) {
	const node, gid = "0002:c903:0021:6e70\n", "fe80:0000:0000:0000:0002:c903:0021:6e78\n"
	of := func(guid, gid, layer string) map[string]string {
		const dir = "infiniband/mlx5_2/"
		return map[string]string{dir + "node_guid": guid, dir + "ports/1/gids/0": gid, dir + "ports/1/link_layer": layer}
	}
	two := of(node, gid, "InfiniBand\n")
	two["infiniband/mlx5_3/node_guid"] = node
	for name, tt := range map[string]struct {
		files      map[string]string
		node, port string // "-": nothing is known
	}{
		"both":            {of(node, gid, "InfiniBand\n"), "00:02:c9:03:00:21:6e:70", "00:02:c9:03:00:21:6e:78"},
		"none yet":        {of("0000:0000:0000:0000\n", "fe80:0000:0000:0000:0000:0000:0000:0000\n", "InfiniBand\n"), "", ""},
		"deleted":         {of("ffff:ffff:ffff:ffff\n", "fe80:0000:0000:0000:ffff:ffff:ffff:ffff\n", "InfiniBand\n"), "", ""},
		"Ethernet":        {of(node, gid, "Ethernet\n"), "-", "-"},
		"two devices":     {two, "-", "-"},
		"another driver":  {nil, "-", "-"},
		"not a GID":       {of(node, "none\n", "InfiniBand\n"), "00:02:c9:03:00:21:6e:70", ""},
		"a GID too short": {of(node, "fe80\n", "InfiniBand\n"), "00:02:c9:03:00:21:6e:70", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tt.files {
				file = filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			said := func(guid *string) string {
				if guid == nil {
					return "-"
				}
				return *guid
			}
			if node, port := guids(dir); said(node) != tt.node || said(port) != tt.port {
				t.Errorf("node %q, port %q; want %q, %q", said(node), said(port), tt.node, tt.port)
			}
		})
	}
}
