// Package vxlan is the step type "vxlan": an Ethernet tunnel over UDP. Sources: RFC 7348,
// drivers/net/vxlan/vxlan_core.c (vxlan_config_validate, vxlan_changelink), ip-link(8).
package vxlan
