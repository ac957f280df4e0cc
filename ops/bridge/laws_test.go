package bridge_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/optest"
)

func TestLaws(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	optest.Run(t, reg)
}
