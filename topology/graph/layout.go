package graph

import (
	"cmp"
	"math"
	"slices"
)

// layout places nodes in layers from left to right, a node after everything it depends on,
// and routes an edge that spans layers around the boxes between them through a waypoint in
// each.
type layout struct {
	items  []item
	layers [][]int // items from top to bottom
	routes [][]int // per edge of the picture: the items it runs through
}

// item is a box, or a waypoint of an edge.
type item struct {
	node   int // index into picture.nodes; -1 for a waypoint
	layer  int
	height float64
	y      float64 // of the centre
	before []int   // neighbours in the layer to the left
	after  []int   // and to the right
}

const (
	boxHeight      = 44 // of a box without notes
	noteHeight     = 15
	waypointHeight = 8
	rowGap         = 16
	// maxWaypoints bounds the layout of huge graphs; beyond it edges are drawn
	// straight through whatever is between.
	maxWaypoints = 2000
	sweeps       = 12
)

func newLayout(p picture) *layout {
	l := &layout{}
	l.place(p)
	l.route(p)
	l.order()
	l.align()
	return l
}

// place puts every node into the layer after the last of its dependencies.
func (l *layout) place(p picture) {
	layer := make([]int, len(p.nodes))
	for range p.nodes { // at most as many rounds as the longest path
		moved := false
		for _, e := range p.edges {
			if layer[e[1]] <= layer[e[0]] {
				layer[e[1]], moved = layer[e[0]]+1, true
			}
		}
		if !moved {
			break
		}
	}
	for i := range p.nodes {
		l.add(item{node: i, layer: layer[i], height: boxHeight + noteHeight*float64(len(p.nodes[i].notes))})
	}
}

func (l *layout) add(it item) int {
	i := len(l.items)
	l.items = append(l.items, it)
	for len(l.layers) <= it.layer {
		l.layers = append(l.layers, nil)
	}
	l.layers[it.layer] = append(l.layers[it.layer], i)
	return i
}

// route adds the waypoints.
func (l *layout) route(p picture) {
	waypoints := 0
	for _, e := range p.edges {
		waypoints += l.items[e[1]].layer - l.items[e[0]].layer - 1
	}
	for _, e := range p.edges {
		path := []int{e[0]}
		if waypoints <= maxWaypoints {
			for at := l.items[e[0]].layer + 1; at < l.items[e[1]].layer; at++ {
				path = append(path, l.add(item{node: -1, layer: at, height: waypointHeight}))
			}
		}
		path = append(path, e[1])
		for i := 1; i < len(path); i++ {
			from, to := path[i-1], path[i]
			l.items[from].after = append(l.items[from].after, to)
			l.items[to].before = append(l.items[to].before, from)
		}
		l.routes = append(l.routes, path)
	}
}

// order sorts each layer by the mean position of its neighbours, sweeping forth and back,
// and keeps the order with the fewest crossings.
func (l *layout) order() {
	best, fewest := l.snapshot(), l.crossings()
	for sweep := range sweeps {
		if fewest == 0 {
			break
		}
		if sweep%2 == 0 {
			for i := 1; i < len(l.layers); i++ {
				l.sortLayer(i, func(it item) []int { return it.before })
			}
		} else {
			for i := len(l.layers) - 2; i >= 0; i-- {
				l.sortLayer(i, func(it item) []int { return it.after })
			}
		}
		if n := l.crossings(); n < fewest {
			best, fewest = l.snapshot(), n
		}
	}
	l.layers = best
}

func (l *layout) snapshot() [][]int {
	out := make([][]int, len(l.layers))
	for i := range l.layers {
		out[i] = slices.Clone(l.layers[i])
	}
	return out
}

// positions returns each item's place in its layer.
func (l *layout) positions() []float64 {
	pos := make([]float64, len(l.items))
	for _, layer := range l.layers {
		for p, i := range layer {
			pos[i] = float64(p)
		}
	}
	return pos
}

func (l *layout) sortLayer(layer int, neighbours func(item) []int) {
	pos := l.positions()
	weight := make(map[int]float64, len(l.layers[layer]))
	for _, i := range l.layers[layer] {
		weight[i] = mean(neighbours(l.items[i]), pos, pos[i])
	}
	slices.SortStableFunc(l.layers[layer], func(a, b int) int { return cmp.Compare(weight[a], weight[b]) })
}

func mean(of []int, values []float64, otherwise float64) float64 {
	if len(of) == 0 {
		return otherwise
	}
	sum := 0.0
	for _, i := range of {
		sum += values[i]
	}
	return sum / float64(len(of))
}

// crossings counts pairs of edges between neighbouring layers that cross: the
// inversions among their right ends once they are sorted by their left ends.
func (l *layout) crossings() int {
	pos := l.positions()
	n := 0
	for _, layer := range l.layers {
		var ends []float64
		for _, i := range layer {
			own := make([]float64, 0, len(l.items[i].after))
			for _, j := range l.items[i].after {
				own = append(own, pos[j])
			}
			slices.Sort(own)
			ends = append(ends, own...)
		}
		n += inversions(ends)
	}
	return n
}

// inversions counts by merge sort; it sorts its argument.
func inversions(v []float64) int {
	if len(v) < 2 {
		return 0
	}
	left, right := slices.Clone(v[:len(v)/2]), slices.Clone(v[len(v)/2:])
	n := inversions(left) + inversions(right)
	for i := range v {
		if len(right) == 0 || len(left) > 0 && left[0] <= right[0] {
			v[i], left = left[0], left[1:]
		} else {
			n += len(left)
			v[i], right = right[0], right[1:]
		}
	}
	return n
}

// align gives every item a height on the page: as near to its neighbours as
// the order and the gaps allow.
func (l *layout) align() {
	for _, layer := range l.layers {
		y := 0.0
		for _, i := range layer {
			l.items[i].y = y + l.items[i].height/2
			y += l.items[i].height + rowGap
		}
	}
	for sweep := range sweeps {
		for n := range l.layers {
			layer, neighbours := l.layers[n], func(it item) []int { return it.before }
			if sweep%2 == 1 {
				layer, neighbours = l.layers[len(l.layers)-1-n], func(it item) []int { return it.after }
			}
			l.alignLayer(layer, neighbours)
		}
	}
	top := math.Inf(1)
	for i := range l.items {
		top = min(top, l.items[i].y-l.items[i].height/2)
	}
	for i := range l.items {
		l.items[i].y -= top
	}
}

func (l *layout) alignLayer(layer []int, neighbours func(item) []int) {
	y := make([]float64, len(l.items))
	for i := range l.items {
		y[i] = l.items[i].y
	}
	want, offset := make([]float64, len(layer)), make([]float64, len(layer))
	for p, i := range layer {
		if p > 0 {
			offset[p] = offset[p-1] + (l.items[layer[p-1]].height+l.items[i].height)/2 + rowGap
		}
		want[p] = mean(neighbours(l.items[i]), y, y[i]) - offset[p]
	}
	for p, at := range monotone(want) {
		l.items[layer[p]].y = at + offset[p]
	}
}

// monotone returns the non-decreasing sequence nearest to want by least
// squares (pool adjacent violators).
func monotone(want []float64) []float64 {
	type pool struct {
		sum  float64
		size int
	}
	var pools []pool
	for _, w := range want {
		pools = append(pools, pool{w, 1})
		for n := len(pools); n > 1 && pools[n-2].sum/float64(pools[n-2].size) > pools[n-1].sum/float64(pools[n-1].size); n = len(pools) {
			pools[n-2].sum += pools[n-1].sum
			pools[n-2].size += pools[n-1].size
			pools = pools[:n-1]
		}
	}
	out := make([]float64, 0, len(want))
	for _, p := range pools {
		for range p.size {
			out = append(out, p.sum/float64(p.size))
		}
	}
	return out
}
