package bond

import (
	"os"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/vlan" // want depguard
)

func TestTestsMay(t *testing.T) {
	t.Log(os.Getpid(), time.Now(), vlan.Known)
}
