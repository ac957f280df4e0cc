// Package controller is the cluster's side of NetworkQoS. NetworkQoS writes the status of the objects: conditions that do not
// depend on pods, and the sums of what nodes report, which Reports keeps. Destinations knows the addresses of the pods that
// rules have as a destination, which are written into NetworkQoSDestinations. The API permissions that it needs are listed
// at NetworkQoS.
package controller
