package qostest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Chapter is one file of objects of OKEP-4380, verbatim, and what the enhancement says of them.
type Chapter struct {
	File string
	// Rules are those of a pod that the file is about, on the network that it is about.
	Rules []qos.Rule
	// Row is the row that the enhancement writes for it: priority and mark, and RateKbit and BurstKbit as the object says.
	Priority  int
	DSCP      uint8
	RateKbit  uint32
	BurstKbit uint32
	// Marked and Unmarked are destinations.
	Marked, Unmarked []string
}

// Story reads the objects of the enhancement from their folder.
func Story(dir string) ([]Chapter, error) {
	outside := []string{"8.8.8.8", "198.51.100.7", "172.15.0.1", "192.167.0.1"}
	private := []string{"10.1.2.3", "172.16.5.5", "192.168.3.3", "2001:db8:1::7"}
	definition := map[string]string{v1alpha1.AnnotationDefinition: "default/ovn-storage"}
	var out []Chapter
	for _, c := range []struct {
		Chapter
		namespace, user string
		secondary       bool
	}{
		{Chapter{File: "paid-and-free.yaml", Priority: 10020, DSCP: 20, Marked: outside, Unmarked: private}, "games", "paid", false},
		{Chapter{File: "paid-and-free.yaml", Priority: 10040, DSCP: 11, Marked: outside, Unmarked: private}, "games", "free", false},
		{Chapter{
			File: "bandwidth.yaml", Priority: 10040, DSCP: 11, RateKbit: 1_000_000, BurstKbit: 1_000_000, Marked: outside,
			Unmarked: private,
		}, "games", "free", false},
		{Chapter{File: "secondary.yaml", Priority: 10040, DSCP: 11, Marked: append([]string{"10.1.2.3"},
			outside...), Unmarked: []string{"2001:db8:1::7"}}, "games", "free", true},
		{Chapter{File: "ipv6.yaml", Priority: 10060, DSCP: 48, Marked: []string{
			"2001:db8:85a3::8a2e:370:7330",
			"2001:db8:85a3::8a2e:370:733f",
		}, Unmarked: []string{"2001:db8:85a3::8a2e:370:7340", "198.51.100.7"}}, "default", "", false},
	} {
		data, err := os.ReadFile(filepath.Join(dir, c.File))
		if err != nil {
			return nil, fmt.Errorf("story: %w", err)
		}
		network := qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}
		if c.secondary {
			network = qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: "storage"}, Labels: definition}
		}
		if c.Rules, _, err = Compile(data, network, c.namespace, map[string]string{"user-type": c.user}); err != nil {
			return nil, fmt.Errorf("story: %s: %w", c.File, err)
		}
		out = append(out, c.Chapter)
	}
	return out, nil
}
