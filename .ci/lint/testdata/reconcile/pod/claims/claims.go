// Package claims knows UIDs, and no API server.
package claims

import (
	_ "k8s.io/api/resource/v1" // want depguard
)
